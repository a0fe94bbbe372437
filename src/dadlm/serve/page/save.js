// Pictures and data as files that the browser saves.

export function saveSvg(svg, name) {
  saveText(source(svg), "image/svg+xml", `${name}.svg`);
}

export async function savePng(svg, name) {
  const image = new Image();
  const isThere = new Promise((done, failed) => {
    image.onload = done;
    image.onerror = () => failed(new Error("This browser could not draw the picture."));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source(svg))}`;
  await isThere;
  const scale = Math.min(2, 16000 / image.width); // browsers refuse larger canvases
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(image.width * scale);
  canvas.height = Math.round(image.height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  save(canvas.toDataURL("image/png"), `${name}.png`); // toBlob waits until the browser is idle
}

export function saveJson(data, name) {
  saveText(JSON.stringify(data, null, 1), "application/json", `${name}.json`);
}

function source(svg) {
  return new XMLSerializer().serializeToString(svg);
}

function saveText(text, type, name) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  save(url, name);
  setTimeout(() => URL.revokeObjectURL(url), 10_000); // the browser reads it after the click
}

function save(href, download) {
  Object.assign(document.createElement("a"), { href, download }).click();
}

// Talks to the server: models and samplers, streamed answers, error messages.

export class ServerError extends Error {
  /** `param`: the setting at fault. */
  constructor(message, status, param) {
    super(message);
    Object.assign(this, { status, param });
  }
}

export async function listModels(key) {
  return (await ask("v1/models", { headers: headers(key) })).json();
}

/** The objects of an answer by server-sent events, as they arrive. If the signal aborts, the server cancels. */
export async function* stream(path, body, key, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const line of lines(answer.body)) {
    if (!line.startsWith("data:")) continue; // blank lines and comments that keep the connection alive
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const object = JSON.parse(data);
    if (object.error) throw new ServerError(sentence(object.error.message));
    yield object;
  }
  throw new ServerError("The connection ended before the text did. Is the server still running?");
}

async function* lines(body) {
  let rest = "";
  for await (const piece of chunks(body.pipeThrough(new TextDecoderStream()))) {
    const whole = (rest + piece).split("\n");
    rest = whole.pop();
    yield* whole;
  }
}

// Not every browser can loop over a stream yet.
async function* chunks(readable) {
  const reader = readable.getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } catch (error) {
    if (error.name === "AbortError") throw error; // others are reported as an incomplete answer
  } finally {
    await reader.cancel().catch(() => {}); // an aborted one has nothing left to cancel
  }
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function ask(path, request) {
  let answer;
  try {
    answer = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
  if (answer.ok) return answer;
  const error = (await answer.json().catch(() => null))?.error;
  throw new ServerError(words(answer, error?.message), answer.status, error?.param);
}

function words(answer, message) {
  if (answer.status === 401) return "This server needs a key. Type it above and try again.";
  if (answer.status === 429) {
    const seconds = answer.headers.get("retry-after");
    return `The server is busy. Try again ${seconds ? `in ${seconds} s` : "in a moment"}.`;
  }
  return message ? sentence(message) : `The server answered ${answer.status} ${answer.statusText}.`;
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

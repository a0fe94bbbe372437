"""Several copies of the server behind one address, on Ray Serve: the same application, the same API.

Every copy loads the models for itself. Ray's own processes talk over loopback only, whatever the address
that is served; its dashboard and its usage reports are off.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dadlm.errors import ConfigError
from dadlm.serve.settings import ServeSettings

# Read by Ray when it is imported. The second makes it stay on loopback, as it does on a desktop.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def serve_replicas(
    sources: Mapping[str, str],
    *,
    replicas: int,
    device: str,
    dtype: str,
    settings: ServeSettings,
    api_key: str | None,
    announce: Callable[[], None],
) -> None:
    """Serve until a signal says to end, then let the copies finish what they have."""
    if not settings.port:
        raise ConfigError("replicas need a port of their own: pass --port")
    ray, serve = _import_ray()
    ray.init(
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
        num_cpus=replicas + 1,
        runtime_env={"worker_process_setup_hook": "dadlm.serve.replicas.listen_locally"},
    )
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": settings.host, "port": settings.port},
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
        )
        copy = serve.deployment(serve.ingress(_builder(dict(sources), device, dtype, settings, api_key))())
        serve.run(copy.options(**_options(replicas, device, settings)).bind(), name="dadlm", route_prefix="/")
        ended = _signals()  # now: Ray has put handlers of its own there
        announce()
        ended.wait()
        serve.shutdown()
    finally:
        ray.shutdown()


def _options(replicas: int, device: str, settings: ServeSettings) -> dict[str, Any]:
    on_gpu = device.startswith("cuda")
    return {
        "name": "dadlm",
        "num_replicas": replicas,
        "max_ongoing_requests": settings.max_rows + settings.max_queue,
        "graceful_shutdown_timeout_s": settings.grace,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 1,
        "health_check_timeout_s": 10,
        "ray_actor_options": {"num_cpus": 1, "num_gpus": int(on_gpu)},
    }


def _builder(
    sources: dict[str, str], device: str, dtype: str, settings: ServeSettings, api_key: str | None
) -> Callable[[], Any]:
    """Called in each copy: models and threads do not travel between processes, names do."""

    def build():
        from dadlm.model import load
        from dadlm.serve.app import create_app
        from dadlm.serve.service import Service

        models = {name: load(source, device, dtype) for name, source in sources.items()}
        return create_app(Service.of(models, settings), api_key)

    return build


def listen_locally() -> None:
    """Called in each of Ray's processes: its copies would open a port to all the world."""
    from ray.serve._private import replica

    name = "add_port_to_grpc_server"
    listen = getattr(replica, name)
    setattr(replica, name, lambda server, address: listen(server, address.replace("[::]", "127.0.0.1")))


def _signals() -> threading.Event:
    ended = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: ended.set())
    return ended


def _import_ray() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ConfigError("--replicas needs Ray Serve: pip install 'dadlm[serve,ray]'") from error
    return ray, serve

"""Several replicas of the server behind one address, on Ray Serve.

Ray's own processes listen on loopback only; its dashboard and usage reports are off.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from dadlm.errors import ConfigError
from dadlm.serve.settings import ServeSettings

# Ray reads them on import. The second keeps it on loopback, as on a desktop.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def serve_replicas(
    build: Callable[[], Any],
    settings: ServeSettings,
    replicas: int,
    on_gpu: bool,
    announce: Callable[[int], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then let the replicas finish their requests.

    `build` makes the application in each replica: models and threads cannot be sent between processes.
    """
    if not settings.port:
        raise ConfigError("replicas need a fixed port: pass --port")
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ConfigError("--replicas needs Ray Serve: pip install 'dadlm[serve,ray]'") from error

    ray.init(
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        num_cpus=replicas + 1,
        runtime_env={"worker_process_setup_hook": "dadlm.serve.replicas.listen_on_loopback"},
    )
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": settings.host, "port": settings.port},
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
        )
        deployment = serve.deployment(serve.ingress(build)()).options(
            name="dadlm",
            num_replicas=replicas,
            max_ongoing_requests=settings.max_rows + settings.max_queue,
            graceful_shutdown_timeout_s=settings.grace,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=1,
            health_check_timeout_s=10,
            ray_actor_options={"num_cpus": 1, "num_gpus": int(on_gpu)},
        )
        serve.run(deployment.bind(), name="dadlm", route_prefix="/")
        ended = threading.Event()
        for name in (signal.SIGTERM, signal.SIGINT):  # after Ray, which sets handlers of its own
            signal.signal(name, lambda *_: ended.set())
        announce(settings.port)
        ended.wait()
        serve.shutdown()
    finally:
        ray.shutdown()


def listen_on_loopback() -> None:
    """Runs in each of Ray's processes: a replica would open a gRPC port on all addresses."""
    import grpc

    create = grpc.aio.server

    def server(*args: Any, **kwargs: Any) -> Any:
        created = create(*args, **kwargs)
        add = created.add_insecure_port
        created.add_insecure_port = lambda address: add(address.replace("[::]", "127.0.0.1"))
        return created

    grpc.aio.server = server

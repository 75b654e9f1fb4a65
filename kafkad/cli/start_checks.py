"""What a start checks of a configuration before it opens anything, for `kafkad serve` and `kafkad doctor
cluster`."""

from kafkad.config.broker import BrokerConfig
from kafkad.config.served import check_served, is_alone
from kafkad.security.authorizer import authorizer_settings
from kafkad.security.listeners import controller_listeners, sasl_listeners
from kafkad.security.principal_rules import principal_rules
from kafkad.security.tls import check_controllers, tls_contexts
from kafkad.server.authentication import read_bytes
from kafkad.server.kerberos import check_keytabs


def check_start(config: BrokerConfig) -> None:
    """Raise ConfigError, ValueError, or the OSError of a file that security needs."""
    check_served(config)
    check_keytabs(sasl_listeners(config))
    tls_contexts(config, read_bytes)
    principal_rules(config)
    if not is_alone(config):
        from kafkad.server.node_links import check_links  # much code that a broker alone does not need

        check_links(config, read_bytes)
        check_keytabs(controller_listeners(config))
        check_controllers(config, read_bytes)
        principal_rules(config, config.controller_endpoints)
    authorizer_settings(config)

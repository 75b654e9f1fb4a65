"""Decisions by ACLs, each by a walk over all of them: the slow twin of `kafkad.security.acls`, written after
StandardAuthorizerData.findResult and Authorizer.authorizeByResourceType."""

from kafkad.security.acls import Kind, Operation, Pattern, Permission

IMPLIES = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


def is_about(acl, kind, name):
    if acl.kind != kind:
        return False
    if acl.pattern == Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name == "*" or acl.name == name


def result(acl, principal, host, operation):
    """ "DENY", "ALLOW" or None."""
    if acl.principal != principal and acl.principal != "User:*":
        return None
    if acl.host != "*" and acl.host != host:
        return None
    implied = IMPLIES.get(operation, ()) if acl.permission == Permission.ALLOW else ()
    if acl.operation not in (Operation.ALL, operation, *implied):
        return None
    return "ALLOW" if acl.permission == Permission.ALLOW else "DENY"


def decide(acls, principal, host, kind, operation, name, default):
    about = [acl for acl in acls if is_about(acl, kind, name)]
    results = [result(acl, principal, host, operation) for acl in about]
    if "DENY" in results:
        return False
    if "ALLOW" in results:
        return True
    return default and not about


def decide_on_any(acls, principal, host, kind, operation, default):
    if decide(acls, principal, host, kind, operation, "hardcode", default):
        return True
    denied, allowed = [], []
    for acl in acls:
        if acl.kind == kind and acl.operation in (operation, Operation.ALL):
            said = result(acl, principal, host, operation)
            if said is not None:
                (denied if said == "DENY" else allowed).append((acl.name, acl.pattern))
    if ("*", Pattern.LITERAL) in denied:
        return False
    if ("*", Pattern.LITERAL) in allowed:
        return True
    for name, pattern in allowed:
        if pattern == Pattern.LITERAL and (name, pattern) in denied:
            continue
        if not any(name.startswith(other) for other, how in denied if how == Pattern.PREFIXED):
            return True
    return False


class Questions:
    """Random ACLs that collide, and everything that can be asked about them."""

    PRINCIPALS = ("User:alice", "User:bob", "User:*", "Group:alice", "User:")
    HOSTS = ("*", "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1")
    NAMES = ("*", "a", "ab", "abc", "b", "hardcode", "ha", "!", "kafka-cluster", "ä")
    OPERATIONS = tuple(Operation(number) for number in range(Operation.ALL, Operation.TWO_PHASE_COMMIT + 1))
    ASKED = tuple(operation for operation in OPERATIONS if operation != Operation.ALL)
    KINDS = (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER)

    def __init__(self, random):
        self.random = random

    def acl(self, acl_of):
        pick = self.random.choice
        often = (Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
        return acl_of(
            kind=pick((Kind.TOPIC, Kind.TOPIC, *self.KINDS)),
            name=pick(self.NAMES),
            pattern=pick((Pattern.LITERAL, Pattern.PREFIXED)),
            principal=pick(self.PRINCIPALS),
            host=pick(("*", *self.HOSTS)),
            operation=pick((*often, pick(self.OPERATIONS))),
            permission=pick((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        )

    def asked(self):
        """(kind, operation, name)"""
        return [(kind, op, name) for kind in self.KINDS for op in self.ASKED for name in self.NAMES]

    def subjects(self):
        return [(who, host) for who in ("User:alice", "User:carol", "Group:alice") for host in self.HOSTS[1:]]

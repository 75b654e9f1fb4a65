def list_partition(
    directory: str,
) -> (
    tuple[
        dict[int, int],
        dict[int, int],
        dict[int, int],
        dict[int, int],
        list[int],
        bytes | None,
        bytes | None,
        bytes | None,
    ]
    | None
): ...

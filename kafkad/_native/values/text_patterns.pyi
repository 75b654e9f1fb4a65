class Pattern:
    text: str
    has_zone: bool
    def __init__(self, text: str, option: str = "the pattern") -> None: ...

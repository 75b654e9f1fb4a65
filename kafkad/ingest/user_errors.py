"""The exceptions of `kafkad ingest` whose text is an error message for the user."""

from kafkad.ingest.backlog import DataLoss
from kafkad.ingest.checkpoint import Busy, Foreign
from kafkad.ingest.landing import BadRecord
from kafkad.ingest.run import Refused
from kafkad.ingest.session import NoSpark
from kafkad.ingest.table import TableError
from kafkad.values.schema_registry import RegistryError, UnknownSchema

USER_ERRORS = (
    Refused, DataLoss, Busy, Foreign, NoSpark, TableError, BadRecord, RegistryError, UnknownSchema, ValueError
)  # fmt: skip

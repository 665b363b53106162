"""What a verify server serves: an engine, and the vocabulary that its token ids belong to.

Loading a model imports the native module; serving a scripted engine does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from forerun import __version__
from forerun.engine.interface import TargetEngine
from forerun.v1 import verify_pb2 as pb
from verify_server.config import VerifyConfig
from verify_server.messages import limits


@dataclass(frozen=True, slots=True)
class Target:
    """A target model, ready to run.

    vocab_size: token ids are 0 to vocab_size - 1, padding rows of the embedding not counted.
    vocabulary: the bytes of each id, where known; fingerprint: SHA-256 over it, hexadecimal.
    """

    engine: TargetEngine
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    fingerprint: str = ""
    vocabulary: list[bytes] = field(default_factory=list)
    model_name: str = ""
    architecture: str = ""

    def describe(self, config: VerifyConfig, max_context: int) -> pb.GetTargetInfoResponse:
        """The answer to GetTargetInfo, without the vocabulary."""
        info = self.engine.info
        return pb.GetTargetInfoResponse(
            model_name=self.model_name,
            architecture=self.architecture,
            vocab_size=self.vocab_size,
            vocabulary_fingerprint=self.fingerprint,
            eos_token_ids=self.eos_token_ids,
            hidden_size=info.hidden_size,
            num_layers=info.num_layers,
            dtype=info.dtype,
            isa=info.isa,
            page_size=info.page_size,
            pages_total=info.pages_total,
            limits=limits(config, max_context),
            model_fingerprint=info.model_fingerprint,
            version=__version__,
            instance=uuid4().hex,
        )


def load_target(config: VerifyConfig) -> Target:
    """Loads the model that the config names, with progress on standard error.

    Raises ModelError for a checkpoint that cannot be used, ValueError for settings that cannot
    work.
    """
    from forerun.engine import Engine, EngineConfig
    from forerun.models import default_model_path, load_tokenizer, open_checkpoint
    from forerun.obs.progress import progress

    path = Path(config.model) if config.model else default_model_path()
    tokenizer = load_tokenizer(path)
    with open_checkpoint(path) as checkpoint, progress(f"loading {path.name}") as report:
        model = checkpoint.config
        vocab_size = min(tokenizer.vocab_size, model.vocab_size)
        settings = EngineConfig(
            dtype=config.dtype,
            page_size=config.page_size,
            kv_tokens=config.kv_tokens,
            prefix_cache_bytes=config.prefix_cache_bytes,
            threads=config.threads or None,
            max_rows=config.max_rows,
            max_context=config.max_context,
            vocab_size=vocab_size,
        )
        engine = Engine.load(checkpoint, settings, report)
    return Target(
        engine=engine,
        vocab_size=vocab_size,
        eos_token_ids=tuple(sorted({*tokenizer.eos_token_ids, *model.eos_token_ids})),
        fingerprint=tokenizer.fingerprint,
        vocabulary=tokenizer.vocabulary(),
        model_name=model.name,
        architecture=model.architecture,
    )

"""What a server's models are called: names, aliases, adapters; what a client writes as "model" -> which one it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from embedllm.errors import EmbedError
from embedllm.files.nearest import nearest
from embedllm.loading.options import LoadOptions

_LISTED = 10  # names in a message


class UnknownModel(EmbedError):
    """No model of this server has the name.

    name: what was asked for. names: what there is.
    """

    def __init__(self, message: str, *, name: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.name = name
        self.names = tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a server offers."""

    name: str
    """What clients write as "model"."""
    path: str
    """What embedllm.load() takes."""
    aliases: tuple[str, ...] = ()
    """Other names of it."""
    options: LoadOptions = field(default_factory=LoadOptions)
    """As load() has them; its adapters are offered by their names, too."""
    pinned: bool = False
    """Loaded when the server starts, and never unloaded."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of its LoRA adapters."""
        return tuple(self.options.adapters or ())


class ModelNames:
    """Finds models by what clients call them."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Raises ValueError for no model at all, for an empty name, and for a name that two of them have."""
        if not models:
            raise ValueError("there is no model to serve; give at least one.")
        self._first = models[0]
        self._models: dict[str, ServedModel] = {}
        self._adapters: dict[str, list[ServedModel]] = {}
        for model in models:
            for name in (model.name, *model.aliases):
                if not name:
                    raise ValueError(f"a name of the model at '{model.path}' is empty; expected text.")
                if name in self._models:
                    raise ValueError(f"two models are named '{name}'; give one of them another name or alias.")
                self._models[name] = model
            for adapter in model.adapters:
                self._adapters.setdefault(adapter, []).append(model)

    def find(self, name: str | None) -> tuple[ServedModel, str | None]:
        """The model and the adapter that a name stands for; None and "": the first model.

        A name is a model's name or alias, one of these with ":" and the name of an adapter, or an adapter's name alone
        where one model has it. Raises UnknownModel.
        """
        if not name:
            return self._first, None
        if (model := self._models.get(name)) is not None:
            return model, None
        base, _, adapter = name.rpartition(":")
        if (model := self._models.get(base)) is not None:
            if adapter in model.adapters:
                return model, adapter
            has = ", ".join(f"'{adapter_name}'" for adapter_name in model.adapters[:_LISTED]) or "none"
            raise self._unknown(name, f"model '{base}' has no adapter '{adapter[:80]}'; it has: {has}.")
        owners = self._adapters.get(name, [])
        if len(owners) == 1:
            return owners[0], name
        if owners:
            whole = " or ".join(f"'{owner.name}:{name}'" for owner in owners)
            raise self._unknown(name, f"several models have an adapter '{name}'; write {whole}.")
        listed = ", ".join(f"'{model_name}'" for model_name in [*self._models][:_LISTED])
        raise self._unknown(name, f"there is no model '{name[:80]}'.{nearest(name[:80], self.names)} Models: {listed}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that stands for a model or an adapter."""
        pairs = [f"{model.name}:{adapter}" for adapter, owners in self._adapters.items() for model in owners]
        return (*self._models, *pairs)

    def _unknown(self, name: str, message: str) -> UnknownModel:
        return UnknownModel(message, name=name, names=self.names)

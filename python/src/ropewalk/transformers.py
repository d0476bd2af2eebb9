"""Attention of transformers 5.x on ropewalk.

    import ropewalk.transformers
    ropewalk.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="ropewalk")
    model.generate(**inputs, past_key_values=ropewalk.transformers.RopewalkCache(model.config))

`register()` adds an attention function and a mask function, both named "ropewalk". The mask function describes a mask instead of building one. The
cache is optional: it keeps K and V in pages and hands the attention function a handle of them; without it transformers' own caches work. Models that
are loaded already, and those whose attention never looks into the registry (MPT, BLOOM, DeBERTa v2 and v3), take `enable(model)`.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, get_layer_types_and_kwargs
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from . import _core

NAME = "ropewalk"
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

# They look at K and V between the cache's update() and attention, so a handle does not do. (transformers 5.23)
_KEYS_AFTER_UPDATE = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "longcat_flash", "kimi_linear", "minicpm3", "jetmoe", "moonshine",
    "diffllama", "mllama", "idefics",
}  # fmt: skip
# Arguments that would change numbers and that nothing here implements.
_REFUSED = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "block_table", "cache", "head_mask")


@dataclass
class _Mask:
    """What the mask function found out, in place of a tensor [batch, 1, queries, keys]."""

    span: _core.AttentionSpan
    q_start: int  # index of the first query among the keys
    keys: int
    key_first: np.ndarray | None = None  # [batch]
    key_last: np.ndarray | None = None
    words: np.ndarray | None = None  # [batch, queries, ceil(keys / 64)] uint64
    bias: Any = None  # of _dense
    bias_tensor: torch.Tensor | None = None
    biases: dict = field(default_factory=dict)  # by position_bias, made for all layers at once

    # With a static cache, generate() makes masks itself and hands them to the model, which brings them back to _mask_function.
    ndim = 4

    def contiguous(self):
        return self

    def to(self, *args):  # MPT asks for bool
        return self

    def __getattr__(self, name):
        raise AttributeError(
            f"attn_implementation='{NAME}' makes no mask tensor, but the model asks its mask for '{name}': its attention does not go "
            "through transformers' registry; load it with attn_implementation='eager' or 'sdpa'"
        )


def _span_of(function) -> tuple[int | None, int | None] | None:
    """(left, right) of a mask function of transformers.masking_utils, None: unlimited. None where it is no function of the distance."""
    if function is causal_mask_function:
        return None, 0
    if function is bidirectional_mask_function:
        return None, None
    if getattr(function, "__module__", "") != causal_mask_function.__module__ or not hasattr(function, "__code__"):
        return None
    free = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    match function.__qualname__:
        case "sliding_window_overlay.<locals>.inner_mask":
            return free["sliding_window"] - 1, None
        case "sliding_window_bidirectional_overlay.<locals>.inner_mask":
            return free["sliding_window"], free["sliding_window"]
        case "and_masks.<locals>.and_mask":
            parts = [_span_of(part) for part in free["mask_functions"]]
            if None in parts:
                return None
            return tuple(min((part[side] for part in parts if part[side] is not None), default=None) for side in (0, 1))
    return None


def _ranges(mask: torch.Tensor) -> tuple[np.ndarray | None, np.ndarray | None] | None:
    """First and behind the last key of each row of a mask [batch, keys]; None where a row has holes."""
    visible = mask.numpy()
    count, keys = visible.sum(axis=1), visible.shape[1]
    first = np.where(count > 0, visible.argmax(axis=1), 0)
    last = np.where(count > 0, keys - visible[:, ::-1].argmax(axis=1), 0)
    if not np.array_equal(last - first, count):
        return None
    return (first if first.any() else None), (last if (last != keys).any() else None)


def _words(mask: torch.Tensor) -> np.ndarray:
    """Bits of a mask [batch, queries, keys]."""
    bits = np.packbits(mask.numpy(), axis=-1, bitorder="little")
    return np.ascontiguousarray(np.pad(bits, ((0, 0), (0, 0), (0, -bits.shape[-1] % 8)))).view(np.uint64)


def _mask_function(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function, attention_mask=None, **kwargs
):
    """The mask of one step for all layers of a kind; see transformers.masking_utils for the arguments."""
    if isinstance(attention_mask, _Mask):
        return attention_mask
    q_start = int(q_offset) - int(kv_offset)
    span = None if kwargs.get("use_vmap") else _span_of(mask_function)
    ranges = (None, None)
    if attention_mask is not None:
        padding = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
        if (missing := kv_length - padding.shape[1]) > 0:
            padding = torch.nn.functional.pad(padding, (0, missing))
        ranges = _ranges(padding)
    if span is not None and ranges is not None:
        return _Mask(_core.AttentionSpan(*span), q_start, kv_length, *ranges)
    # A pattern of its own (blocks of images, packed sequences) or padding with holes: bits, from transformers' own dense mask.
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    dense = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **kwargs)
    return _Mask(_core.AttentionSpan.full(), q_start, kv_length, words=_words(dense[:, 0]))


def _of_tensor(mask: torch.Tensor, batch: int) -> _Mask:
    """A mask that the caller built, [batch, 1 or heads, queries, keys], bool or additive."""
    full, keys = _core.AttentionSpan.full(), mask.shape[-1]
    if mask.dim() != 4:
        raise ValueError(f"attention_mask has shape {list(mask.shape)}; expected four axes [batch, 1 or heads, queries, keys]")
    mask = mask.expand(batch, -1, -1, -1)
    if mask.dtype == torch.bool and mask.shape[1] == 1:
        return _Mask(full, 0, keys, words=_words(mask[:, 0]))
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    bias = mask.float().masked_fill(hidden, -torch.inf)
    return _Mask(full, 0, keys, bias_tensor=bias)


def _rows_bias(bias: torch.Tensor, batch: int, heads: int, queries: int, keys: int) -> _core.AttentionBias:
    """An AttentionBias of [1 or batch, 1 or heads, queries, keys]."""
    rows = bias[..., :keys].float().expand(batch, heads, queries, keys).transpose(1, 2)
    return _core.AttentionBias.of_rows(rows.reshape(batch * queries, heads, keys).contiguous())


class _Plans(threading.local):
    """Plans that the thread used last: layers of one geometry share that of their step, 32 being more than a model has geometries and sinks."""

    size = 32

    def __init__(self):
        self.known = {}  # in the order of their making

    def find(self, key, held, build):
        """The plan of `key`; `held` are objects whose ids are in it, which must not be reused while it is here."""
        if (entry := self.known.get(key)) is not None:
            return entry[0]
        if len(self.known) >= self.size:
            self.known.pop(next(iter(self.known)))
        plan = build()
        self.known[key] = plan, held
        return plan


_plans = _Plans()


def _refuse(query, key, value, dropout, kwargs):
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in (query, key, value)):
        raise NotImplementedError(f"attn_implementation='{NAME}' has no backward pass: call the model within torch.no_grad()")
    if dropout:
        raise NotImplementedError(f"attn_implementation='{NAME}': dropout is {dropout}; must be 0: call model.eval()")
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attn_implementation='{NAME}': argument '{name}' is not supported")
    if query.dtype not in _TYPES or query.device.type != "cpu":
        raise TypeError(f"query is {query.dtype} on {query.device}; expected float32, bfloat16 or float16 on the CPU")


def _attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, softcap=None, s_aux=None, position_bias=None,
    alibi_slopes=None, relative_terms=None, relative_tensors=None, **kwargs,
):  # fmt: skip
    """query [batch, heads, queries, k_dim]; key and value [batch, kv_heads, keys, dim], or a handle of RopewalkCache. Returns (out, None) with
    out [batch, queries, heads, v_dim]. transformers itself knows no argument from alibi_slopes on: see _FORWARDS."""
    _refuse(query, key, value, dropout, kwargs)
    batch, heads, queries, k_dim = query.shape
    _, kv_heads, keys, _ = key.shape
    v_dim = value.shape[-1]
    mask = attention_mask
    if mask is None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        span = _core.AttentionSpan.causal() if causal and queries > 1 else _core.AttentionSpan.full()
        mask = _Mask(span, keys - queries, keys)
    elif isinstance(mask, torch.Tensor):
        mask = _of_tensor(mask, batch)
    bias = _bias(mask, position_bias, batch, heads, queries, keys)
    paged = isinstance(key, PagedKeys)
    hides = mask.key_first is not None or mask.key_last is not None or mask.words is not None or mask.bias_tensor is not None
    plan_key = (
        batch, heads, queries, k_dim, kv_heads, keys, v_dim, query.dtype, scaling, softcap,
        (mask.span.left, mask.span.right, mask.q_start, mask.keys, id(mask) if hides else 0), id(position_bias), id(alibi_slopes), id(relative_terms),
        (id(s_aux), s_aux._version) if s_aux is not None else 0, key.plan_key() if paged else (key.dtype, value.dtype),
    )  # fmt: skip

    def build():
        problem = _core.AttentionProblem(
            heads=heads, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, q_type=_TYPES[query.dtype], span=mask.span, softcap=softcap or 0.0, bias=bias,
            sinks=None if s_aux is None else s_aux.detach().float().contiguous(), scale=0.0 if scaling is None else scaling,
            alibi_slopes=alibi_slopes, relative=relative_terms,
        )  # fmt: skip
        rows = np.arange(batch + 1)
        where = {"page_indptr": key.page_indptr(), "page_ids": key.page_ids()} if paged else {"kv_indptr": rows * keys}
        step = _core.AttentionBatch(
            q_indptr=rows * queries, kv_lens=np.full(batch, min(keys, mask.keys)), q_starts=np.full(batch, mask.q_start), **where,
            **_hidden(mask, batch, queries),
        )  # fmt: skip
        plan = _core.AttentionPlan()
        if paged:
            plan.build(problem, step, key.layout, key.page_count)
        else:
            plan.build_plain(problem, step, _TYPES[key.dtype], _TYPES[value.dtype])
        return plan

    plan = _plans.find(plan_key, (mask, s_aux, position_bias, alibi_slopes, relative_terms), build)
    out = query.new_empty(batch, queries, heads, v_dim)
    q_rows, out_rows = query.detach().transpose(1, 2).reshape(-1, heads, k_dim), out.view(-1, heads, v_dim)
    if paged:
        plan.run(q_rows, key.pages, out_rows, bias=bias, relative=relative_tensors)
    else:
        plan.run_plain(q_rows, _rows(key), _rows(value), out_rows, bias=bias, relative=relative_tensors)
    return out, None


def _rows(states: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, dim] as [batch * tokens, heads, dim]: a view where batch is 1 or the memory is token-major."""
    return states.detach().transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])


def _hidden(mask: _Mask, batch: int, queries: int) -> dict[str, np.ndarray]:
    """The batch arguments that hide keys of single rows."""
    arguments = {}
    if mask.key_first is not None:
        arguments["key_first"] = np.repeat(mask.key_first, queries).astype(np.int64)
    if mask.key_last is not None:
        arguments["key_last"] = np.repeat(mask.key_last, queries).astype(np.int64)
    if mask.words is not None:
        arguments["key_masks"] = mask.words.ravel()
        arguments["key_mask_indptr"] = np.arange(batch + 1) * mask.words[0].size
    return arguments


def _bias(mask: _Mask, position_bias, batch, heads, queries, keys):
    """The bias of a step; made once for all layers that share the tensor."""
    if mask.bias_tensor is None and position_bias is None:
        return None
    known = mask.biases.get(id(position_bias))
    if known is None:
        total = mask.bias_tensor if position_bias is None else position_bias
        if mask.bias_tensor is not None and position_bias is not None:
            total = mask.bias_tensor + position_bias
        known = _rows_bias(total.detach(), batch, heads, queries, keys), position_bias
        mask.biases[id(position_bias)] = known
    return known[0]


def _refusing(check):
    """PreTrainedModel.get_correct_attn_implementation, which lets any registered name pass, for models that never look into the registry too: they
    would run their eager code and nobody would know."""

    @functools.wraps(check)
    def get_correct_attn_implementation(self, requested_attention, *args, **kwargs):
        if requested_attention == NAME and not (self._supports_attention_backend or self._can_set_attn_implementation()):
            raise NotImplementedError(
                f"attn_implementation='{NAME}': the attention of {type(self).__name__} does not go through transformers' registry; "
                "load it with attn_implementation='eager'"
                + (" and call ropewalk.transformers.enable(model)" if self.config.model_type in _ENABLED else "")
            )
        return check(self, requested_attention, *args, **kwargs)

    return get_correct_attn_implementation


def register() -> None:
    """Makes attn_implementation="ropewalk" known to transformers. May be called any number of times."""
    if NAME not in AttentionInterface._global_mapping:
        PreTrainedModel.get_correct_attn_implementation = _refusing(PreTrainedModel.get_correct_attn_implementation)
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask_function)


# Attention of models that compute it themselves. Each function replaces the forward of a module of theirs; positions come as slopes and terms, which
# act on tiles of scores, and not as the tensors that the models make of them.


def _mpt(self, hidden_states, position_bias, past_key_values=None, attention_mask=None, *, positions, **kwargs):
    mixed = self.Wqkv(hidden_states)
    if self.clip_qkv:
        mixed = mixed.clamp(min=-self.clip_qkv, max=self.clip_qkv)
    query, key, value = (x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    if isinstance(attention_mask, torch.Tensor):
        attention_mask = ~attention_mask  # the model's says what is hidden
    dropout = self.attn_dropout_p if self.training else 0.0
    out, _ = _attention(self, query, key, value, attention_mask, dropout, self.softmax_scale, alibi_slopes=positions)
    return self.out_proj(out.flatten(2)), None


def _bloom(self, hidden_states, residual, alibi, attention_mask, layer_past=None, *, positions, **kwargs):
    query, key, value = self._reshape(self.query_key_value(hidden_states))
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    if attention_mask.words is not None:  # padding with holes: positions, which leave them out, are no longer those of the slots
        positions, attention_mask.bias_tensor = None, alibi.unflatten(0, (-1, self.num_heads))
    dropout = self.attention_dropout.p if self.training else 0.0
    out, _ = _attention(self, query, key, value, attention_mask, dropout, self.inv_norm_factor, alibi_slopes=positions)
    return residual + torch.nn.functional.dropout(self.dense(out.flatten(2)), self.hidden_dropout, self.training), None


def _deberta(self, hidden_states, attention_mask, output_attentions=False, query_states=None, relative_pos=None, rel_embeddings=None, *, positions):
    if relative_pos is not None:
        raise NotImplementedError(f"attn_implementation='{NAME}': argument 'relative_pos' is not supported")
    heads, tensors = (self.num_attention_heads, -1), None
    queries = hidden_states if query_states is None else query_states
    query, key, value = (
        project(states).unflatten(-1, heads).transpose(1, 2)
        for project, states in ((self.query_proj, queries), (self.key_proj, hidden_states), (self.value_proj, hidden_states))
    )
    if positions is not None:
        table, shared = rel_embeddings[: 2 * self.pos_ebd_size], self.share_att_key
        rows = (self.key_proj if shared else self.pos_key_proj)(table).unflatten(-1, heads) if positions.rows else None
        columns = (self.query_proj if shared else self.pos_query_proj)(table).unflatten(-1, heads) if positions.columns else None
        tensors = _core.RelativeTensors(rows=rows, columns=columns)
    if isinstance(attention_mask, torch.Tensor):
        attention_mask = attention_mask.bool()
    scale = (query.shape[-1] * (1 + sum(kind in self.pos_att_type for kind in ("c2p", "p2c")))) ** -0.5
    dropout = self.dropout.p if self.training else 0.0
    out, _ = _attention(self, query, key, value, attention_mask, dropout, scale, relative_terms=positions, relative_tensors=tensors)
    return out.flatten(2), None


def _deberta_mask(self, attention_mask):
    if attention_mask.dim() > 2:
        return attention_mask if attention_mask.dim() > 3 else attention_mask.unsqueeze(1)
    batch, keys = attention_mask.shape
    return _mask_function(batch, keys, keys, mask_function=bidirectional_mask_function, attention_mask=attention_mask.bool())


def _deberta_relative_pos(self, hidden_states, query_states=None, relative_pos=None):
    return relative_pos  # [1, queries, keys] otherwise


def _deberta_terms(module):
    """The RelativeTerms of a DisentangledSelfAttention, None where it has none."""
    rows, columns = "c2p" in module.pos_att_type, "p2c" in module.pos_att_type
    if not module.relative_attention or not (rows or columns):
        return None
    if module.position_buckets > 0:
        index = _core.RelativeIndex.deberta_buckets(module.position_buckets, module.max_relative_positions)
    else:
        index = _core.RelativeIndex.deberta(module.pos_ebd_size)
    return _core.RelativeTerms(rows=rows, columns=columns, index=index)


# model_type: of classes of its modules, the methods that are replaced, and what makes their `positions`, None where they have none.
_ENABLED = {
    # 8 is what MptModel passes, whatever the configuration says
    "mpt": {"MptAttention": ({"forward": _mpt}, lambda m: _core.alibi_slopes(m.n_heads, rule="mpt", max_exponent=8.0))},
    "bloom": {"BloomAttention": ({"forward": _bloom}, lambda m: _core.alibi_slopes(m.num_heads))},
    "deberta-v2": {
        "DisentangledSelfAttention": ({"forward": _deberta}, _deberta_terms),
        "DebertaV2Encoder": ({"get_attention_mask": _deberta_mask, "get_rel_pos": _deberta_relative_pos}, None),
    },
}


def enable(model):
    """Puts the attention of a loaded model on ropewalk, and returns the model. As attn_implementation="ropewalk" does at load, and for MPT, BLOOM,
    DeBERTa v2 and v3, which compute attention without the registry: their attention modules get another forward. NotImplementedError for others."""
    register()
    classes = _ENABLED.get(model.config.model_type)
    if classes is None:
        if not (model._supports_attention_backend or model._can_set_attn_implementation()):
            model.get_correct_attn_implementation(NAME)  # refuses
        model.set_attn_implementation(NAME)
        return model
    own = [module for module in model.modules() if type(module).__name__ in classes and type(module).__module__.startswith("transformers.")]
    if not own:
        raise NotImplementedError(f"ropewalk.transformers.enable: {type(model).__name__} has none of transformers' {', '.join(classes)}")
    positions = {}  # by class: one object for all layers, whose plans are then the same
    for module in own:
        name = type(module).__name__
        methods, make = classes[name]
        if make is not None:
            if name not in positions:
                positions[name] = make(module)
            methods = {method: functools.partial(function, positions=positions[name]) for method, function in methods.items()}
        for method, function in methods.items():
            setattr(module, method, types.MethodType(function, module))
    model.config._attn_implementation = NAME
    return model


class PagedKeys:
    """What RopewalkCache hands to attention in place of K and V: all keys of one layer, in pages."""

    def __init__(self, pool: _Pool, layer: int, dim: int):
        self._pool, self._layer = pool, layer
        self.pages = pool.cache.pages(layer)
        self.layout, self.page_count = pool.layout, pool.page_count
        self.shape = torch.Size((len(pool.rows), pool.layout.kv_heads, pool.lengths[layer] - pool.gone, dim))
        self.requires_grad = False

    def plan_key(self):
        return self._pool.serial, self._pool.version

    def page_indptr(self):
        return self._pool.tables()[0]

    def page_ids(self):
        return self._pool.tables()[1]

    def __getattr__(self, name):
        raise AttributeError(
            f"RopewalkCache hands attention a handle of its pages, but something asks it for '{name}'. Either the model is not loaded with "
            f"attn_implementation='{NAME}', or it computes with K and V after they are cached: use RopewalkCache(config, dense=True), or "
            "transformers' DynamicCache, there"
        )

    def __getitem__(self, index):
        self.__getattr__("__getitem__")


class _Pool:
    """Pages of the layers that have one geometry and one window. All rows of a batch have the same length."""

    serials = itertools.count()  # tells pools apart in keys of plans, which must not keep a pool's memory

    def __init__(self, key, value, layers, window, max_tokens, page_tokens, kv_type):
        batch, kv_heads, _, k_dim = key.shape
        name = kv_type or _TYPES[key.dtype]
        self.layout = _core.KvLayout.preset(name, kv_heads=kv_heads, k_dim=k_dim, v_dim=value.shape[-1], page_tokens=page_tokens)
        # Beams that part from a shared page copy it: one page more for each row, twice, since new rows are made before old ones go. Pages that are
        # never written take no memory.
        self.page_count = batch * (-(-max_tokens // page_tokens) + 2)
        self.cache = _core.KvCache(self.layout, layers=layers, page_count=self.page_count)
        self.rows = [self.cache.create_sequence() for _ in range(batch)]
        self.serial = next(self.serials)
        self.window = window  # keys that a query sees, its own included; None: all
        self.length = 0  # of every row, gone tokens included
        self.lengths = [0] * layers  # that each layer has written
        self.gone = 0  # tokens at the front whose pages went back
        self.version = 0  # of the page tables
        self._slots = (0, 0, None)  # of tokens from .. to
        self._tables = None

    def tables(self):
        """(page_indptr, page_ids) of the rows."""
        if self._tables is None:
            ids = [self.cache.page_table(row) for row in self.rows]
            self._tables = (
                np.cumsum([0, *map(len, ids)], dtype=np.int64),
                np.fromiter((page for table in ids for page in table), np.int32),
            )
        return self._tables

    def _changed(self):
        self.version += 1
        self._tables = None
        self._slots = (0, 0, None)

    def unseen(self, length):
        """How many tokens at the front have pages that no query from position `length` on sees."""
        if self.window is None:
            return 0
        return max(self.gone, (length - self.window + 1) // self.layout.page_tokens * self.layout.page_tokens)

    def trim(self):
        if (more := self.unseen(self.length) - self.gone) > 0:
            for row in self.rows:
                self.cache.trim_front(row, more)
            self.gone += more
            self._changed()

    def write(self, layer, key, value, keep_past):
        """Appends key and value [batch, kv_heads, tokens, dim] to a layer; the step's first layer gets slots for all of them."""
        batch, _, tokens, _ = key.shape
        if batch != len(self.rows):
            raise ValueError(f"key_states has a batch of {batch}; the cache holds {len(self.rows)} rows: reset() it first")
        first = self.lengths[layer]
        if first + tokens > self.length:
            more = first + tokens - self.length
            if not keep_past:
                self.trim()
            try:
                appended = self.cache.append(self.rows, [more] * batch)[0]
            except _core.OutOfPages as error:
                raise _core.OutOfPages(f"{error} (RopewalkCache: give max_tokens more than {first + tokens - 1})") from None
            self._changed()
            self.length = first + tokens
            if more == tokens:
                self._slots = (first, first + tokens, appended)
        if self._slots[:2] != (first, first + tokens):
            slots = np.concatenate([self.cache.slots(row, first - self.gone, tokens) for row in self.rows])
            self._slots = (first, first + tokens, slots)
        _core.kv_append(self.cache.pages(layer), self._slots[2], _rows(key), _rows(value))
        self.lengths[layer] = first + tokens

    def read(self, layer, like_key, like_value):
        """K and V [batch, kv_heads, tokens, dim] of a layer as tensors."""
        tokens = self.lengths[layer] - self.gone
        slots = np.concatenate([self.cache.slots(row, 0, tokens) for row in self.rows])
        shape = (len(self.rows), tokens, self.layout.kv_heads)
        key, value = (like.new_empty(*shape, like.shape[-1]) for like in (like_key, like_value))
        _core.kv_gather(self.cache.pages(layer), slots, key.flatten(0, 1), value.flatten(0, 1))
        return key.transpose(1, 2), value.transpose(1, 2)

    def select(self, parents):
        """Row i becomes what row parents[i] is. Pages are shared until somebody writes."""
        taken, rows = set(), []
        for parent in parents:
            rows.append(self.cache.fork(self.rows[parent]) if parent in taken else self.rows[parent])
            taken.add(parent)
        for index, row in enumerate(self.rows):
            if index not in taken:
                self.cache.free(row)
        if rows != self.rows:
            self.rows = rows
            self._changed()

    def crop(self, tokens):
        length = max(self.length - tokens, 0)
        if self.window is not None and self.gone > max(length - self.window + 1, 0):
            raise RuntimeError(
                f"crop(-{tokens}) of a cache of {self.length} tokens: a window of {self.window} keys needs keys from before {self.gone}, "
                "which are gone; call activate_past_recording() before what may be taken back"
            )
        self.length = length
        for row in self.rows:
            self.cache.truncate(row, self.length - self.gone)
        self.lengths = [min(length, self.length) for length in self.lengths]
        self._changed()


class _Layer(CacheLayerMixin):
    """One layer of a RopewalkCache, as transformers asks for it."""

    is_compileable = False
    is_croppable = True

    def __init__(self, owner: RopewalkCache, index: int, window: int | None):
        """index: among the layers of this window."""
        super().__init__()
        self._owner, self._index, self._window = owner, index, window
        self.is_sliding = window is not None
        self.pool: _Pool | None = None

    def lazy_initialization(self, key_states, value_states):
        self.pool = self._owner._pool_for(key_states, value_states, self._window)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if key_states.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError("RopewalkCache has no backward pass: call the model within torch.no_grad()")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.pool.write(self._index, key_states, value_states, self._owner.record_past)
        if self._owner.dense:
            return self.pool.read(self._index, key_states, value_states)
        key = PagedKeys(self.pool, self._index, key_states.shape[-1])
        value = key if value_states.shape[-1] == key_states.shape[-1] else PagedKeys(self.pool, self._index, value_states.shape[-1])
        return key, value

    def get_mask_sizes(self, query_length):
        length, pool = self.get_seq_length(), self.pool
        gone = 0 if pool is None else pool.gone if self._owner.record_past else pool.unseen(length)
        return length + query_length - gone, gone

    def get_seq_length(self):
        return self.pool.lengths[self._index] if self.pool is not None else 0

    def get_max_length(self):
        return -1

    def reset(self):
        self.pool, self.is_initialized = None, False

    def _of_the_cache(self, *args):
        raise NotImplementedError("layers of a RopewalkCache share their rows: call this method of the cache")

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = offload = prefetch = _of_the_cache


class RopewalkCache(Cache):
    """K and V in pages. For generate(past_key_values=...) and model(past_key_values=...) with attn_implementation="ropewalk".

    config      the model's
    max_tokens  what a row may grow to, at most; the default is the model's max_position_embeddings. Address space is set aside for it, memory is
                taken as pages are written
    kv_type     a name of KvLayout.preset(), e.g. "bf16" or, quantised, "k8v8"; default: the type of the model's K
    dense       hand K and V back as tensors, gathered at every step: slow, for models that compute with them after they are cached. Those that are
                known to do so get it, with a warning

    Layers with a window give back pages that no later token sees, at the beginning of each step; after activate_past_recording(), which decoding with
    drafts calls, when crop() has said what stays.
    """

    def __init__(self, config, *, max_tokens: int | None = None, page_tokens: int = 64, kv_type: str | None = None, dense: bool = False):
        text = config.get_text_config(decoder=True)
        if text.model_type in _KEYS_AFTER_UPDATE and not dense:
            warnings.warn(f"RopewalkCache: '{text.model_type}' computes with K and V after they are cached: dense=True, which is slow", stacklevel=2)
            dense = True
        self.dense = dense
        self.max_tokens = max_tokens if max_tokens is not None else getattr(text, "max_position_embeddings", None)
        if not self.max_tokens:
            raise ValueError(f"max_tokens is not given, and model_type '{text.model_type}' has no max_position_embeddings")
        self.page_tokens, self.kv_type = page_tokens, kv_type
        self.record_past = False
        self._pools: dict[tuple, _Pool] = {}
        self._layers_of: dict[int | None, int] = {}  # by window
        super().__init__(layers=[self._layer(kind, **more) for kind, more in zip(*get_layer_types_and_kwargs(text), strict=True)])

    def _layer(self, kind, sliding_window=None, **more):
        if kind == "dummy":  # takes the keys of another layer, or has no attention
            return DummyLayer()
        if kind not in ("full_attention", "sliding_attention", "chunked_attention"):
            raise NotImplementedError(f"RopewalkCache: layers of type '{kind}' are not supported; use transformers' DynamicCache")
        index = self._layers_of.get(sliding_window, 0)
        self._layers_of[sliding_window] = index + 1
        return _Layer(self, index, sliding_window)

    def _pool_for(self, key, value, window) -> _Pool:
        geometry = (key.shape[1], key.shape[3], value.shape[3], key.dtype, window)
        if geometry not in self._pools:
            self._pools[geometry] = _Pool(key, value, self._layers_of[window], window, self.max_tokens, self.page_tokens, self.kv_type)
        return self._pools[geometry]

    def reorder_cache(self, beam_idx):
        parents = beam_idx.tolist()
        for pool in self._pools.values():
            pool.select(parents)

    def batch_repeat_interleave(self, repeats):
        for pool in self._pools.values():
            pool.select([row for row in range(len(pool.rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices):
        for pool in self._pools.values():
            pool.select(torch.arange(len(pool.rows))[indices].tolist())

    def crop(self, tokens_to_remove):
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove is {tokens_to_remove}; must be 0 or negative: how many tokens to remove, negated")
        for pool in self._pools.values():
            if tokens_to_remove < 0:
                pool.crop(-tokens_to_remove)
            pool.trim()

    def activate_past_recording(self):
        self.record_past = True

    def reset(self):
        self._pools.clear()
        self.record_past = False
        super().reset()

    def stats(self) -> list[_core.KvCacheStats]:
        """Pages of each geometry and window that the model's layers have."""
        return [pool.cache.stats() for pool in self._pools.values()]

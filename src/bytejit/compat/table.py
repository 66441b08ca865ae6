"""The table of private interfaces: every name and memory layout of torch and CPython that no documentation promises.

A row says why it is used, on which versions it was seen, how it is looked for, and what happens where it is not found.
What torch's own compiler leaves on a program's objects has rows of its own: `NAMES` of common/torch_controls.py.
tests/compat/test_table.py holds the table complete: a private name anywhere under src/ without a row fails it.
"""

from __future__ import annotations

from bytejit.common.light_dataclass import light_dataclass

TORCHES = ("2.11", "2.15")  # the oldest and the newest torch that the suite runs on; docs/versions.md
PYTHONS = ("3.11", "3.14")
REFUSED = "nothing is compiled: functions run as they are, with one warning"


@light_dataclass(frozen=True)
class Interface:
    """One private interface. A name ending in a point stands for all names that begin with it.

    probe: "name": looked up in this process; "child": memory is read, and "trial": sample functions are compiled, by a
    child process on versions that the suite never ran on; "use": looked for by the code that uses it;
    "own": found by this package, in objects of its own.
    """

    name: str
    why: str
    without: str = REFUSED
    probe: str = "name"
    versions: str = f"torch {TORCHES[0]} to {TORCHES[1]}"

    @property
    def needed(self) -> bool:
        """Whether nothing is compiled without it."""
        return self.without == REFUSED


def _rows(why: str, names: str, prefix: str = "torch._C.", **more: str) -> tuple[Interface, ...]:
    return tuple(Interface(prefix + name, why, **more) for name in names.split())


TORCH = (
    *_rows(
        "the state that a trace starts from, is put back and is guarded",
        """
        _set_grad_enabled _get_deterministic_algorithms _get_deterministic_algorithms_warn_only _is_fwd_grad_enabled
        _set_fwd_grad_enabled _is_view_replay_enabled
        _set_view_replay_enabled _is_multithreading_enabled _set_multithreading_enabled get_autocast_dtype is_autocast_enabled
        _is_autocast_available _is_any_autocast_enabled _DisableAutocast
        _InferenceMode TensorBase.is_inference _get_cudnn_benchmark _get_cudnn_deterministic
        _get_cudnn_enabled _get_cudnn_sdp_enabled _get_flash_sdp_enabled _get_math_sdp_enabled _get_mem_efficient_sdp_enabled
        _get_sdp_priority_order _set_sdp_priority_order _set_sdp_use_cudnn _set_sdp_use_flash _set_sdp_use_math
        _set_sdp_use_mem_efficient _get_mkldnn_enabled""",
    ),
    *_rows(
        "modes and overrides on torch's stacks: read, taken off while tracing, put back",
        """
        _len_torch_function_stack _get_function_stack_at _push_on_torch_function_stack _pop_torch_function_stack
        _is_torch_function_mode_enabled _is_torch_function_enabled _is_torch_function_all_disabled _len_torch_dispatch_stack
        _get_dispatch_stack_at _push_on_torch_dispatch_stack _pop_torch_dispatch_stack DisableTorchFunction
        DisableTorchFunctionSubclass _EnableTorchFunction _DisableTorchDispatch _disabled_torch_function_impl
        _dispatch_tls_local_exclude_set _dispatch_tls_local_include_set _dispatch_tls_set_dispatch_key_excluded
        _dispatch_tls_set_dispatch_key_included""",
    ),
    *_rows(
        "what torch's own Python asks inside a region, known while tracing",
        """
        _get_tracing_state _is_tracing _log_api_usage_once _get_privateuse1_backend_name _are_functorch_transforms_active
        _functorch.is_functorch_wrapped_tensor _functorch.maybe_current_level _functorch.peek_interpreter_stack _nn._parse_to
        _VariableFunctions TensorBase""",
    ),
    *_rows(
        "hooks on saved tensors around a compiled graph",
        """_autograd._pop_saved_tensors_default_hooks
        _autograd._push_saved_tensors_default_hooks _autograd._top_saved_tensors_default_hooks _autograd._profiler_enabled
        _autograd._saved_tensors_hooks_disable _autograd._saved_tensors_hooks_enable
        _autograd._saved_tensors_hooks_get_disabled_error_message""",
    ),
    *_rows("a recurrent layer keeps what its backward pass reads, unfollowed by autograd", "_AutoDispatchBelowAutograd"),
    *_rows("versions of tensors that a graph writes count the program's writes", "_autograd._unsafe_set_version_counter"),
    *_rows(
        "a saved tensor is looked at by itself, where only some outputs of a graph were used",
        "_autograd.SavedTensor _autograd.SavedTensor.unpack",
        probe="use",
        without="versions of what is saved are noted and compared here",
    ),
    *_rows(
        "a backward pass that is the last one frees what was saved while it runs",
        "_FunctionBase _FunctionBase.maybe_clear_saved_tensors",
        probe="use",
        without="what was saved is freed when the pass ends",
    ),
    *_rows(
        "the node of a compiled graph keeps little, and is called without what Python does around other nodes",
        "_C._FunctionBase.to_save _C._FunctionBase.materialize_grads autograd.Function._backward_cls",
        prefix="torch.",
    ),
    *_rows("whether a backward pass is the last one through its graph", "_autograd._get_current_graph_task_keep_graph"),
    *_rows("which gradients a backward pass is for", "_will_engine_execute_node"),
    *_rows(
        "whether a backward pass is for a result of a graph: the frame that runs it, read by name (pass_frames.py)",
        "_engine_run_backward",
        prefix="torch.autograd.graph.",
        probe="own",
        without="a pass goes through parts of a graph that it may not be for",
    ),
    *_rows(
        "results of other processes that are still to come, within a DTensor",
        "AsyncCollectiveTensor",
        prefix="torch.distributed._functional_collectives.",
        probe="use",
        without="the call that waits for them breaks the graph",
    ),
    *_rows("in which order a backward pass comes to what eager saved", "_sequence_nr", "torch.autograd.graph.Node."),
    *_rows(
        "whether an operation has one result, whose hooks eager calls with a gradient only",
        "_input_metadata",
        "torch.autograd.graph.Node.",
    ),
    *_rows(
        "how views were made: together, or without gradients",
        "_autograd._get_creation_meta _autograd._set_creation_meta _autograd.CreationMeta.MULTI_OUTPUT_NODE "
        "_autograd.CreationMeta.DEFAULT _autograd.CreationMeta.NO_GRAD_MODE _autograd.CreationMeta.INFERENCE_MODE",
    ),
    *_rows("whether a backward pass is for many gradients at once", "_functorch.is_legacy_batchedtensor"),
    *_rows("which backward pass computes a checkpointed part again", "_current_graph_task_id"),
    *_rows(
        "what a function that torch.utils.checkpoint decorates calls",
        "_checkpoint_impl",
        prefix="torch.utils.checkpoint.",
        probe="use",
        without="such functions are not made by torch",
        versions="torch 2.15",
    ),
    *_rows(
        "whether a checkpoint runs compiled code again: its hooks and frames, read by name (checkpoint_frames.py)",
        "_checkpoint_hook.frame _recomputation_hook.target_frame_ref checkpoint.gen "
        "_checkpoint_without_reentrant_generator.new_frame",
        prefix="torch.utils.checkpoint.",
        probe="own",
        without="what is saved within a checkpoint is eager's: graphs in it run through torch",
    ),
    *_rows("whether torch lets a backward pass go through a reentrant checkpoint", "_is_checkpoint_valid", "torch.autograd."),
    *_rows("the operator of a public function, as graphs hold it", "_nn.linear _nn.pad _nn.scaled_dot_product_attention"),
    *_rows(
        "a value whose history a backward pass within a graph has used up: going backward from it raises",
        "_functions.DelayedError",
    ),
    *_rows(
        "which kernels an operator has, so that shapes are inferred by torch's own",
        """_dispatch_has_kernel
        _dispatch_has_kernel_for_dispatch_key _select_conv_backend _conv_determine_backend_memory_format""",
    ),
    *_rows(
        "recordings of a GPU's work: streams and memory pools",
        """_cuda_beginAllocateCurrentThreadToPool _cuda_endAllocateToPool _cuda_getCurrentRawStream
        _cuda_getDevice _cuda_isCurrentStreamCapturing _cuda_releasePool _storage_Use_Count _dispatch_keyset_full_after
        DispatchKey. DispatchKeySet. _has_storage""",
        probe="use",
        without="graphs on a GPU are not recorded",
    ),
    *_rows(
        "fake tensors: a wrapper subclass whose shapes are inferred",
        """Tensor._make_subclass
        Tensor._make_wrapper_subclass utils._python_dispatch.TorchDispatchMode utils._python_dispatch._disable_current_modes
        _decomp.decomposition_table _decomp.global_decomposition_table _decomp.meta_table _meta_registrations _refs
        _dispatch.python.enable_python_dispatcher""",
        prefix="torch.",
    ),
    *_rows(
        "scopes in traces of torch.profiler",
        "autograd.profiler._is_profiler_enabled _C._profiler._RecordFunctionFast",
        prefix="torch.",
        probe="use",
        without="traces show no graphs and kernels",
    ),
    *_rows(
        "the code through which every call of a module goes: regions there are named after the module's forward",
        "_wrapped_call_impl _call_impl",
        prefix="torch.nn.Module.",
        probe="use",
        without="a module's region is named after nn.Module's own code",
    ),
    *_rows(
        "meta kernels without the import of torch's own compiler",
        "_compile._disable_dynamo",
        prefix="torch.",
        probe="use",
        without="meta kernels run through torch's wrapper, which imports its compiler: slower",
    ),
    *_rows(
        "operators and functions of torch's optimizers and of GradScaler: followed in a form that asks no tensor for a value",
        """
        _fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_ _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_
        _C._group_tensors_by_device_and_dtype optim._adafactor optim._adafactor._single_tensor_adafactor
        optim._adafactor._multi_tensor_adafactor optim.asgd._single_tensor_asgd optim.asgd._multi_tensor_asgd
        optim.radam._single_tensor_radam optim.radam._multi_tensor_radam optim.optimizer._get_value
        optim.optimizer._stack_if_compiling amp.GradScaler._maybe_opt_step""",
        prefix="torch.",
    ),
    *_rows(
        "the function that torch spares its own compiler, in the closure of what stands for it (closures.py)",
        "_compile._disable_dynamo.fn",
        prefix="torch.",
        probe="own",
        without="calls of such functions break the graph",
    ),
    *_rows(
        "shapes of a user's operators",
        "_library.simple_registry _library.custom_ops.OPDEFS library._impls",
        prefix="torch.",
        probe="use",
        without="a graph with such an operator and symbolic sizes breaks",
    ),
    *_rows("types of operators in graphs", "_ops.OpOverload _ops.OpOverloadPacket _ops.HigherOrderOperator", prefix="torch."),
    *_rows(
        "Python of torch that is traced or replaced",
        """_assert _check_with _check_tensor_all_with utils._device.DeviceContext _C._infer_size
        distributions.constraints._PositiveDefinite distributions.utils._lazy_property_and_property
        utils._device._device_constructors autograd.forward_ad._current_level""",
        prefix="torch.",
    ),
    *_rows(
        "function transforms: the parts of vmap, grad and jvp",
        """_functorch.eager_transforms._jvp_with_argnums
        _functorch.eager_transforms._replace_args _functorch.eager_transforms._slice_argnums
        _functorch.eager_transforms._validate_and_wrap_argnums _functorch.eager_transforms._vjp_with_argnums
        _functorch.eager_transforms.grad_and_value_impl _functorch.vmap._broadcast_to_and_flatten _functorch.vmap._flat_vmap
        _functorch.vmap.lazy_load_decompositions""",
        prefix="torch.",
    ),
    *_rows(
        "trees of arguments",
        "utils._pytree.tree_flatten utils._pytree.tree_leaves utils._pytree.tree_map utils._pytree.tree_unflatten "
        "utils._pytree.keystr utils._pytree.tree_flatten_with_path",
        prefix="torch.",
    ),
    *_rows(
        "exported graphs keep the shape of their arguments",
        "fx.graph._PyTreeCodeGen fx.graph._PyTreeInfo",
        prefix="torch.",
        probe="use",
        without="bytejit.export raises",
    ),
    Interface("torch._logging._internal.log_state", "TORCH_LOGS, torch._logging.set_logs", "BYTEJIT_LOGS only is heard"),
    *_rows("what torch.fx says of a trace that runs", "fx._symbolic_trace", prefix="torch."),
    *_rows("the cached source of a graph is freed with it", "fx.graph_module._loader.eval_cache", prefix="torch."),
    *_rows(
        "the calls that torch.nn's attention and encoder layers are in evaluation mode: their parts are compiled",
        "_addmm_activation _native_multi_head_attention _transformer_encoder_layer_fwd",
        prefix="torch.",
    ),
    *_rows("the order in which cuDNN wants the weights of a recurrent layer", "_cudnn_rnn_flatten_weight", prefix="torch."),
    *_rows("lets torch put its attentions in the order that it prefers", "_fused_sdp_choice", prefix="torch."),
    *_rows(
        "operators that graphs hold",
        """_adaptive_avg_pool2d _cudnn_rnn _cudnn_rnn_backward _efficientzerotensor _euclidean_dist _log_softmax
        _native_batch_norm_legit _native_batch_norm_legit_no_training
        _neg_view _pad_circular _safe_softmax _softmax _to_copy _unsafe_view _weight_norm_interface
        _weight_norm_interface_backward _assert_async.msg""",
        prefix="torch.ops.aten.",
    ),
    *_rows(
        "what a program asks of torch's libraries, guarded",
        """_get_blas_preferred_backend _get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation
        _get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_tf32 _get_cudnn_allow_tf32
        _get_cudnn_depthwise_kernel _get_float32_matmul_precision _get_fp32_precision_getter
        _get_linalg_preferred_backend _get_mkldnn_deterministic _get_nnpack_enabled _get_onednn_allow_tf32
        _get_qengine""",
        prefix="torch._C.",
        probe="use",
        without="a program that reads it breaks the graph there",
    ),
    *_rows("a check that the program makes, part of the graph", "_assert_async", prefix="torch."),
    *_rows(
        "oneDNN's products and convolutions, timed beside the default",
        """_convolution_pointwise _linear_pointwise
        _reorder_convolution_weight _reorder_linear_weight""",
        prefix="torch.ops.mkldnn.",
        probe="use",
        without="the default library runs them",
    ),
    *_rows(
        "ranges of torch's profiler",
        "_record_function_enter_new _record_function_exit",
        prefix="torch.ops.profiler.",
        probe="use",
        without="ranges are not shown",
    ),
    *_rows(
        "recordings: what overlaps, copies of many",
        "_debug_has_internal_overlap _foreach_copy_ cuda._sleep",
        prefix="torch.",
        probe="use",
        without="graphs on a GPU are not recorded",
    ),
    Interface("torch.autograd._profiler_enabled", "an earlier place of the same question", "the newer name is asked", "use"),
    Interface("torch.Tensor._is_view", "whether an input is a view of another tensor"),
    Interface(
        "torch.Tensor.__dlpack_c_exchange_api__",
        "shape, strides, dtype and device of a tensor in 20 ns: a table of C functions",
        "guards are checked from Python",
        "child",
    ),
    *_rows(
        "torch's state is read, and outputs are made, in a third of the time",
        """aoti_torch_empty_strided aoti_torch_delete_tensor_object _Z16THPVariable_WrapRKN2at10TensorBaseE
        _ZN3c108GradMode10is_enabledEv _ZN3c1013InferenceMode10is_enabledEv _ZN3c104impl26raw_local_dispatch_key_setE
        _ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv""",
        prefix="libtorch.",
        probe="child",
        without="torch's Python does it",
    ),
    Interface(
        "triton.runtime.interpreter.",
        "Triton's interpreter is given faster functions of NumPy, in tests without a GPU",
        "kernels are interpreted by its own",
        "use",
        "triton 3.6 to 3.9",
    ),
)
PYTHON = (
    Interface(
        "PyObject.ob_type",
        "the type of an object, read as its second word by compiled guards",
        "guards are checked from Python",
        "child",
        "3.11 to 3.14, with a GIL",
    ),
    Interface(
        "PyDictObject.ma_keys",
        "the keys and values of an object's `__dict__`, read in one go by compiled guards",
        "each key is looked for",
        "child",
        "3.11 to 3.14, with a GIL",
    ),
    Interface(
        "PyTypeObject.tp_version_tag",
        "the version of a class: whether it or a base has changed. Its place is found in classes of our own",
        "what was looked for in a class is looked for again in every call",
        "own",
        "3.11 to 3.14, with a GIL",
    ),
    Interface(
        "opcodes",
        "code is decoded, followed and rewritten: numbers, stack effects, caches, the exception table",
        REFUSED,
        "trial",
        "3.11 to 3.14",
    ),
    Interface("functools._lru_cache_wrapper", "a cached function is looked into", REFUSED, "name", "3.11 to 3.14"),
    *_rows(
        "the C function behind a public one, modelled while tracing",
        "_abc._abc_init _random.Random _thread.allocate_lock functools._convert heapq._siftdown heapq._siftup "
        "heapq._siftdown_max heapq._siftup_max",
        prefix="",
        versions="3.11 to 3.14",
    ),
    *_rows(
        "functions registered with a function of functools.singledispatch, in its closure (closures.py)",
        "singledispatch.registry singledispatch.dispatch_cache",
        prefix="functools.",
        probe="own",
        without="calls of such functions break the graph",
        versions="3.11 to 3.14",
    ),
    *_rows(
        "the function behind a repr that says '...' within itself, in its closure (closures.py)",
        "recursive_repr.repr_running recursive_repr.user_function",
        prefix="reprlib.",
        probe="own",
        without="the repr is followed as Python code",
        versions="3.11 to 3.14",
    ),
    Interface(
        "_signal.", "the C functions of `signal`: an interrupt waits until the compiler is done", REFUSED, "name", "3.11 to 3.14"
    ),
    Interface("sys._getframe", "the line of the user's code in messages", REFUSED, "name", "3.11 to 3.14"),
    Interface(
        "sys._current_frames",
        "whether another thread is inside a recording",
        "graphs on a GPU are not recorded",
        "use",
        "3.11 to 3.14",
    ),
    *_rows(
        "the state of `warnings` around a trace",
        "warnings._showwarnmsg_impl warnings._showwarning_orig warnings._filters_mutated",
        prefix="",
        versions="3.11 to 3.14",
    ),
    Interface(
        "_cffi_backend.FFI",
        "declarations in the parsed form that cffi writes into modules (kernels/launch.py)",
        "cffi parses them in each process",
        "use",
        "cffi 1.16 on",
    ),
)
ROWS = (*TORCH, *PYTHON)

"""Triton kernels that simulated ranks launch, unmodified, in Triton's own interpreter on CPU memory.

install          puts our launcher in place of Triton's; import_watch tells when a program imports Triton
world            all kernels of a simulation: which program runs on which task
language         `triton.language` while kernels run
triton_api       all that is used of Triton's inside
rewriting        kernels as the interpreter wants them
arguments        what a launch was given
launch           one launch, and its programs as tasks
program          one program: what it has seen, how it waits; waiting tells loops that wait from others
builder          the operations of the language on memory; handles: the arrays that it works on
lanes            scalars that differ between threads
memory_port      loads, stores and atomics, recorded; how they are ordered; atomics: what they change
address_space    which memory a launch can reach
inline_asm       inline assembly: operands to lanes, lanes to results
ptx              PTX text to instructions (ptx_code), with their types (ptx_types)
ptx_compile      instructions to operations: ptx_arithmetic, ptx_moves, ptx_memory; ptx_operation, ptx_values below
ptx_machine      runs them
errors           what can be wrong with a kernel

Not modelled: time (a kernel takes none), warps and how a program's threads share out a tensor, shared memory, clusters,
streams (a launch returns when the kernel has ended), memory that a device has for itself.
"""

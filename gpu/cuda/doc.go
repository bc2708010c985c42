// Package cuda calls the CUDA driver, libcuda, which it loads at run time: no
// program needs a C compiler or the driver to be built, and one that finds no
// driver gets ErrNoDriver.
//
// Host memory is registered with a context to be copied at the link's pace: its
// pages are pinned, and the copy engine reaches them.
//
// # Threads and contexts
//
// The driver keeps the current context by thread, and goroutines have no thread.
// So each call here that is about a context holds its thread, makes the context
// current, calls, and leaves it so: nothing relies on a context that an earlier
// call made current, and the caller locks no thread. All values are safe for
// concurrent use, except that whoever frees, closes or releases one sees to it that
// no other call has it. The operations of a stream are done in the order in which
// they were put there; put them from one goroutine, or behind a mutex, where the
// order matters.
//
// A call that takes a stream returns once the operation is queued. Host memory
// that it names stays the operation's until the stream has come past it (Stream's
// Synchronize, or an Event): it must not be memory that Go may move or free, that
// is, it is mapped, or reachable for that long. Device memory is a DevicePtr, a
// number: the process can not touch it.
//
// An error of an operation that was queued comes from a later call, of any stream
// of the context, and every call after that has it too. The context is lost then,
// and the device memory with it: release everything, and retain it anew.
//
// # What blocks
//
// While a stream waits for a word (Stream.WaitValue), Context.Free, Context.Unregister,
// Context.LoadModule and Module.Unload wait with it. Free before the first wait or after the last,
// and bound each wait by a goroutine that can store the word. Free waits for a kernel that
// is under way too.
//
// # cuFile
//
// Files is NVIDIA's library for transfers between files and device memory, loaded in the same
// way, as far as it takes to know whether a machine has it.
//
// The package links libc and libdl dynamically, so that a static program must not
// import it; it does not decide what is copied or when, and starts no goroutine.
package cuda

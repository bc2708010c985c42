package shmindex

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errUnkept means that the kernel does not mark the owner word of a process that
// ends, as some sandboxes do not.
var errUnkept = errors.New("shmindex: the kernel does not report when a process ends (robust futexes)")

// keeper is the thread whose id is in an owner word. The word is in its robust
// list: when the thread ends, by whatever means, and before any descriptor of
// the process is closed, the kernel sets ownerDied in the word.
type keeper struct{ done chan struct{} }

// keep makes a keeper of word.
func keep(word *uint32) (*keeper, error) {
	k := &keeper{done: make(chan struct{})}
	started := make(chan error)
	go k.run(word, started)
	return k, <-started
}

func (k *keeper) run(word *uint32, started chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		// The main thread does not end with its goroutine: hold it while another
		// one is found.
		go k.run(word, started)
		<-k.done
		return
	}
	err := enlist(word)
	started <- err
	if err == nil {
		<-k.done
	}
}

// end ends the thread.
func (k *keeper) end() { close(k.done) }

// robustList is struct robust_list_head with a list of one, the word.
type robustList struct {
	first   uintptr
	offset  int // from the node to the word
	pending uintptr
	node    uintptr // back to first
}

// enlist makes the calling thread the owner of word. The list is never given
// back: the kernel reads it when the thread is past running any code.
func enlist(word *uint32) error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("shmindex: memory of a keeper: %w", os.NewSyscallError("mmap", err))
	}
	list := (*robustList)(unsafe.Pointer(&page[0]))
	head, node := uintptr(unsafe.Pointer(list)), uintptr(unsafe.Pointer(&list.node))
	list.first, list.node = node, head
	list.offset = int(uintptr(unsafe.Pointer(word)) - node)
	atomic.StoreUint32(word, uint32(unix.Gettid()))
	const headBytes = unsafe.Offsetof(list.node)
	if _, _, errno := unix.RawSyscall(unix.SYS_SET_ROBUST_LIST, head, headBytes, 0); errno != 0 {
		return fmt.Errorf("%w: %w", errUnkept, os.NewSyscallError("set_robust_list", errno))
	}
	return nil
}

// keeperPatience is how long a thread may take to end.
const keeperPatience = 2 * time.Second

// kernelKeeps tries once whether the kernel marks the word of a thread that
// ends, in memory like that of a table.
var kernelKeeps = sync.OnceValue(func() error {
	fd, mem, err := sealed("cascade-keeper", headerBytes)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	word := (*uint32)(unsafe.Pointer(&mem[offOwner]))
	k, err := keep(word)
	if err != nil {
		return err
	}
	k.end()
	if !died(word) {
		return errUnkept // the memory stays: the thread may still end
	}
	return os.NewSyscallError("munmap", unix.Munmap(mem))
})

// died waits for the kernel to mark the word of a keeper that was ended.
func died(word *uint32) bool {
	for deadline := time.Now().Add(keeperPatience); atomic.LoadUint32(word)&ownerDied == 0; {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(50 * time.Microsecond)
	}
	return true
}

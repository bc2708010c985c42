package transfer

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
)

// What one client with a ring can cost others.

// other is one more client of the same store, with a ring.
func (r *ringRig) other(write bool) *ringRig {
	r.t.Helper()
	o := &ringRig{Pool: r.Pool, t: r.t, disk: r.disk, fs: r.fs, disks: r.disks, store: r.store, x: r.NewClient()}
	o.attach(write)
	return o
}

// hang has the disks not answer the rank from now on, until gate is closed, and the rank soon tired of it.
func (r *ringRig) hang(op vfs.Op, gate chan struct{}) {
	r.fs.Add(vfstest.Rule{Op: op, Path: string(filepath.Separator) + "pool-", Block: gate})
	r.patience.disk, r.patience.probe = 20*time.Millisecond, 20*time.Millisecond
}

// awaitBatch waits until the ring takes batches again.
func (r *ringRig) awaitBatch() {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if b := r.at.ring.Batch(gio.Read, 1, 0); b != nil {
			b.End()
			return
		}
		if time.Now().After(end) {
			r.t.Fatal("the ring takes no batches")
		}
	}
}

// word is one of the ring region's header.
func (r *ringRig) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.words[at])) }

// Words of the header, docs/gio.md §2.1.
const (
	engineAt = 192
	stopAt   = 256
)

// wantLoad fails unless a load of some blocks ends as it should, by way of the ring or of memory.
func (r *ringRig) wantLoad(what string, job int64, byRing bool, blocks ...int) {
	r.t.Helper()
	memory := r.store.Stats().Tiers[0].Usage.Blocks
	r.load(job, After{30, 0}, ringBlocks*ringBlock, blocks...)
	if got := r.ended(1)[job]; got != strings.Repeat("1", len(blocks)) {
		r.t.Errorf("%s: a load: %s", what, got)
	}
	for _, i := range blocks {
		if !r.has(i, ringBlocks*ringBlock) {
			r.t.Errorf("%s: block %d has other bytes", what, i)
		}
	}
	if n := r.store.Stats().Tiers[0].Usage.Blocks; (n == memory) != byRing {
		r.t.Errorf("%s: %d blocks more are in memory", what, n-memory)
	}
}

// wantStore is wantLoad of a store.
func (r *ringRig) wantStore(what string, job int64, in string, blocks ...int) {
	r.t.Helper()
	r.fill(int(job), blocks...)
	r.put(Options{Job: job, After: After{30, 0}, Replace: true}, 0, blocks...)
	if got := r.ended(1)[job]; got != strings.Repeat("1", len(blocks)) {
		r.t.Errorf("%s: a store: %s", what, got)
	}
	r.wantStored(int(job), in, blocks...)
}

// TestRingThatDoesNotEnd: whatever a client does to its ring so that it does not end what it was given: the disks are not taken for hanging, others go on, and the client
// has the rest of its blocks by way of memory until the ring has ended.
func TestRingThatDoesNotEnd(t *testing.T) {
	for name, does := range map[string]func(r *ringRig){
		"it waits":        func(*ringRig) {},
		"no device":       func(r *ringRig) { r.word(stopAt).Store(1) },
		"no engine":       func(r *ringRig) { r.word(engineAt).Store(2) },
		"nothing at all":  func(r *ringRig) { r.word(stopAt).Store(1); r.word(engineAt).Store(2) },
		"another started": func(r *ringRig) { r.word(64).Add(7) },
	} {
		for what, store := range map[string]bool{"load": false, "store": true} {
			t.Run(name+"/"+what, func(t *testing.T) {
				stall := make(chan struct{})
				r := newStoreRig(t, direct.Options{Fault: func(io gio.IO) (f gio.Fault) {
					if io.Index == 0 {
						f.Until = stall
					}
					return f
				}})
				ring, opt := r.at.ring, r.Rings
				r.Rings = func(bytes int64, write bool) (*direct.Ring, error) {
					return direct.Over(t.Context(), r.disks, write, direct.Options{Bytes: bytes})
				}
				honest := r.other(true)
				r.Rings = opt
				r.patience.disk = 100 * time.Millisecond
				if store {
					r.put(Options{Job: 1, After: After{1, 1}}, 0, 0, 1)
				} else {
					r.load(1, After{1, 1}, 0, 0, 1)
				}
				r.awaitReading()
				does(r)
				r.raise(1, 1)
				got := r.ended(1)[1]
				r.patience.disk = time.Minute
				if got != "33" {
					t.Errorf("statuses %s", got)
				}
				honest.wantLoad("another client", 2, true, 2, 3)
				honest.wantStore("another client", 3, "nvme", 4, 5)
				r.wantLoad("the same client", 4, false, 6)
				r.wantStore("the same client", 5, "host", 7)
				if n := r.store.Stats().Tiers[1].Errors; n != 0 {
					t.Errorf("%d errors of the disks", n)
				}
				close(stall)
				if name == "it waits" {
					r.awaitBatch()
					r.wantLoad("when it has ended", 6, true, 8)
					r.wantStore("when it has ended", 7, "nvme", 9)
				}
				must(t, r.x.Close())
				must(t, honest.x.Close())
				<-ring.Done()
				r.quiet()
				if used, _ := r.Budget.Usage(); used != (region.Cost{}) || r.rings.Load() != 0 || r.held.Load() != 0 {
					t.Errorf("left: %+v, %d rings, %d bytes", used, r.rings.Load(), r.held.Load())
				}
			})
		}
	}
}

// TestRingWithoutDevice: likewise where the kernel serves the ring; nothing of it is left.
func TestRingWithoutDevice(t *testing.T) {
	needUring(t)
	r := newStoreRig(t, direct.Options{Engine: gio.EngineUring})
	ring, honest := r.at.ring, r.other(true)
	r.patience.disk = 20 * time.Millisecond
	r.load(1, After{1, 1}, 0, 0, 1)
	r.awaitReading()
	r.word(stopAt).Store(1)
	r.raise(1, 1)
	got := r.ended(1)[1]
	if r.patience.disk = time.Minute; got != "33" {
		t.Errorf("statuses %s", got)
	}
	r.blank("what did not begin")
	honest.wantLoad("another client", 2, true, 2, 3)
	honest.wantStore("another client", 3, "nvme", 4, 5)
	r.wantLoad("the same client", 4, false, 6)
	must(t, r.x.Close())
	<-ring.Done()
	must(t, honest.x.Close())
	r.quiet()
}

// TestRingHoldsAPart: a client whose words do not come has a part of the disks' blocks held there, and no more; the others come by way of memory.
func TestRingHoldsAPart(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	const jobs = 10
	for job := range int64(jobs) {
		r.load(job, After{1, 1}, 0, span12()...)
	}
	r.awaitJobs(jobs)
	if n := r.store.Stats().Views; n == 0 || n > 16<<20/ringBlock/ringShare {
		t.Errorf("%d blocks are held", n)
	}
	r.raise(1, 1)
	for job, got := range r.ended(jobs) {
		if got != twelve {
			t.Errorf("job %d: %s", job, got)
		}
	}
	r.quiet()
	if r.held.Load() != 0 || r.at.part.held.Load() != 0 {
		t.Errorf("%d bytes, %d of the ring, count as held", r.held.Load(), r.at.part.held.Load())
	}
}

// awaitJobs waits until so many jobs have made all their turns, or have ended.
func (r *ringRig) awaitJobs(jobs int) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := r.mu.reading + len(r.x.done)
		r.mu.Unlock()
		if n == jobs {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("%d jobs of %d have made their turns", n, jobs)
		}
	}
}

// TestRingStoresThatWait: what waits for its word is of nobody's budget, and no more of it than there is.
func TestRingStoresThatWait(t *testing.T) {
	r := newStoreRig(t, direct.Options{})
	honest := r.other(true)
	const rate = 3*ringBlock + ringBlock/2
	r.store.SetLimits(cascade.Limits{DeepWriteRate: rate})
	for job := range int64(3) {
		r.put(Options{Job: job, After: After{1, 1}}, 0, int(4*job), int(4*job)+1, int(4*job)+2, int(4*job)+3)
	}
	r.awaitJobs(3)
	if n := r.at.part.waiting.Load(); n != 4*ringBlock {
		t.Errorf("%d bytes wait", n)
	}
	honest.wantStore("another client", 7, "nvme", 0, 1)
	r.x.CancelAll()
	r.ended(3)
	if n := r.at.part.waiting.Load(); n != 0 {
		t.Errorf("%d bytes wait in the end", n)
	}
	honest.wantStore("another client, later", 8, "nvme", 2, 3)
	honest.wantStore("another client, over its budget", 9, "host", 4)
}

// TestRingsAreCounted: a client, and all of them, have so many rings and no more, until some are given back.
func TestRingsAreCounted(t *testing.T) {
	r := newRingRig(t, direct.Options{Engine: gio.EngineUser}, nil)
	attach := func(x *Client) (int64, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { CloseAll(fds[0]) })
		return x.AttachRing(fds[1], -1, 4096, false)
	}
	var clients []*Client
	for range mostRings / maxRings {
		x := r.NewClient()
		clients = append(clients, x)
		t.Cleanup(func() { must(t, x.Close()) })
		for range maxRings - 1 {
			_, err := attach(x)
			must(t, err)
		}
	}
	for n := len(clients)*(maxRings-1) + 1; n < mostRings; n++ { // one is the rig's
		_, err := attach(clients[n%len(clients)])
		must(t, err)
	}
	if _, err := attach(clients[0]); err != errRings {
		t.Errorf("one more of all: %v", err)
	}
	must(t, clients[3].Close())
	for range maxRings {
		if len(clients[0].regions) == maxRings {
			break
		}
		_, err := attach(clients[0])
		must(t, err)
	}
	if _, err := attach(clients[0]); err != errRings {
		t.Errorf("one more of a client: %v", err)
	}
}

// lines is a log.
type lines struct {
	sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.text.Write(p)
}

// await waits until there is a line of some words.
func (l *lines) await(t *testing.T, words ...string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		l.Lock()
		text := l.text.String()
		l.Unlock()
		for line := range strings.Lines(text) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no line with %q in:\n%s", words, text)
		}
	}
}

// TestRingThatWritesLater: what the log says of a ring is said again when it is so no more.
func TestRingThatWritesLater(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	var log lines
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	files, err := r.disks.Containers(t.Context())
	must(t, err)
	for _, f := range files {
		must(t, f.Close())
	}
	hang := make(chan struct{})
	r.fs.Add(vfstest.Rule{Op: vfs.OpOpen, Path: string(filepath.Separator) + "pool-", After: len(files), Block: hang})
	r.attach(true)
	log.await(t, "a client has a ring", "ring=2", "is_to_write=true", "writes=false")
	r.fs.Clear()
	close(hang)
	log.await(t, "has room to write to", "ring=2", "writes=true")
	r.wantStore("then", 1, "nvme", 0)
}

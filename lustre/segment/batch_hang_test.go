package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// TestBatchHangs: a batch ends with its context. Blocks that came are good,
// the memory of those that hang is told of when it is free, and the rest was
// never touched. The threads that a dead server takes are bounded.
func TestBatchHangs(t *testing.T) {
	eachWay(t, func(t *testing.T, ring bool) {
		dir := t.TempDir()
		o := testOptions(dir, 1)
		o.SegmentBytes = 1 // a file for each
		s := openStore(t, o)
		var items []tiers.Item
		for i := range 6 {
			items = append(items, testItem(uint64(i+1), 9000))
			put(t, s, items[i])
		}
		closeStore(t, s)
		o.Incarnation, o.Readers = 2, 3
		fs := vfstest.NewFault(machine(t, ring))
		trace := vfstest.NewTrace(fs, dir)
		o.FS = trace
		s = openStore(t, o)
		trace.Take()
		server := make(chan struct{})
		for _, dead := range []string{"000001.bin", "000002.bin", "000004.bin"} {
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: dead, Block: server})
		}
		reads := readsOf(t, s, items)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan []error)
		go func() { result <- s.ReadBatch(ctx, reads) }()
		begun := 0
		for ; begun < 5; time.Sleep(time.Millisecond) { // three hang, two ended: the sixth has no thread
			begun += strings.Count(trace.Take(), "read ")
		}
		cancel()
		errs := <-result
		for i, err := range errs {
			var busy *pool.Busy
			dead := i == 1 || i == 2 || i == 4
			switch {
			case i == 0 || i == 3:
				if err != nil || !bytes.Equal(reads[i].Dst, items[i].Data) {
					t.Errorf("block %d, which came: %v", i, err)
				}
			case dead:
				if !errors.As(err, &busy) || !errors.Is(err, context.Canceled) {
					t.Errorf("block %d, which hangs: %v", i, err)
					continue
				}
				select {
				case <-busy.Done():
					t.Errorf("memory of block %d said to be free while its read hangs", i)
				default:
				}
			default:
				if !errors.Is(err, tiers.ErrUnavailable) || errors.As(err, &busy) || reads[i].Dst[0] != 0xee {
					t.Errorf("block %d, which was not begun: %v", i, err)
				}
			}
		}
		other, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer stop()
		wantErr(t, "a batch without a thread", s.ReadBatch(other, reads[:1])[0], tiers.ErrUnavailable)
		if n := len(s.reads); n != 3 {
			t.Errorf("%d operations hang, want 3", n)
		}
		for _, r := range reads {
			r.Pin.Release()
		}
		close(server)
		for _, i := range []int{1, 2, 4} {
			var busy *pool.Busy
			if errors.As(errs[i], &busy) {
				<-busy.Done()
			}
		}
		settleDown(s)
		wantBatch(t, s, items, nil)
	})
}

// TestBatchesAtOnce: many batches share the readers, blocks are evicted and put
// meanwhile, and nobody gets wrong bytes.
func TestBatchesAtOnce(t *testing.T) {
	o := testOptions(t.TempDir(), 1)
	o.Readers, o.Direct, o.Uring = 4, Auto, Auto
	s := openStore(t, o)
	items := mixture(t, s)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for range 20 {
				var reads []tiers.Read
				var of []tiers.Item
				for range 1 + r.IntN(8) {
					it := items[r.IntN(len(items))]
					if ref, err := s.Pin(it.Info.ID); err == nil {
						reads, of = append(reads, tiers.Read{Pin: ref, Dst: make([]byte, it.Info.Size)}), append(of, it)
					}
				}
				for i, err := range s.ReadBatch(t.Context(), reads) {
					if err != nil || !bytes.Equal(reads[i].Dst, of[i].Data) {
						t.Errorf("block of %d bytes: %v", of[i].Info.Size, err)
					}
					reads[i].Pin.Release()
				}
				if it := items[r.IntN(len(items))]; s.Evict(it.Info.ID) == nil {
					put(t, s, it)
				}
			}
		})
	}
	all.Wait()
}

// told collects the outcomes that reads tell, by index.
type told struct {
	mu   sync.Mutex
	errs map[int]error
}

// listen has each of reads tell its outcome.
func listen(t *testing.T, reads []tiers.Read) *told {
	o := &told{errs: map[int]error{}}
	for i := range reads {
		reads[i].Done = func(err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if _, twice := o.errs[i]; twice {
				t.Errorf("block %d was told of twice", i)
			}
			o.errs[i] = err
		}
	}
	return o
}

func (o *told) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.errs)
}

// TestBatchTellsOfEachBlock: whoever waits for a block of a batch learns of it
// while others of the batch hang, however many those are, and of those when its context ends.
func TestBatchTellsOfEachBlock(t *testing.T) {
	eachWay(t, func(t *testing.T, ring bool) {
		const files = 2 * batchDepth // more than there are workers, and all but the last two hang
		dir := t.TempDir()
		o := testOptions(dir, 1)
		o.SegmentBytes = 1 // a file for each
		s := openStore(t, o)
		var items []tiers.Item
		for i := range files {
			items = append(items, testItem(uint64(i+1), 9000))
			put(t, s, items[i])
		}
		closeStore(t, s)
		fs := vfstest.NewFault(machine(t, ring))
		o.Incarnation, o.FS, o.Readers = 2, fs, 2*files
		s = openStore(t, o)
		server := make(chan struct{})
		for i := range files - 2 {
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: fmt.Sprintf("%06d.bin", i), Block: server})
		}
		reads := readsOf(t, s, items)
		bad := len(reads)
		reads = append(reads, tiers.Read{Pin: reads[0].Pin})
		outcome := listen(t, reads)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan []error)
		go func() { result <- s.ReadBatch(ctx, reads) }()
		for outcome.count() < 3 { // the last two, and the one without room
			time.Sleep(time.Millisecond)
		}
		cancel()
		for outcome.count() < len(reads) { // by then, whatever hangs
			time.Sleep(time.Millisecond)
		}
		close(server)
		errs := <-result
		for i, err := range errs {
			if outcome.errs[i] != err {
				t.Errorf("block %d was told of with %v, the outcome is %v", i, outcome.errs[i], err)
			}
			if good := i == files-2 || i == files-1; good != (err == nil) || good && !bytes.Equal(reads[i].Dst, items[i].Data) {
				t.Errorf("block %d: %v", i, err)
			}
		}
		wantErr(t, "no room", errs[bad], ErrBadItem)
		for _, err := range errs {
			var busy *pool.Busy
			if errors.As(err, &busy) {
				<-busy.Done()
			}
		}
		for _, r := range reads {
			r.Pin.Release()
		}
		settleDown(s)
	})
}

// late is a context that has ended and does not say so at once, as one that
// ends while it is looked at. Who asks first is made to wait, which in ReadBatch
// is the caller.
type late struct {
	context.Context
	s     *opened
	asked atomic.Int32
	first atomic.Bool
}

// Done returns to the caller when the workers have ended, or gives up.
func (l *late) Done() <-chan struct{} {
	for n := 0; n < 100 && (n == 0 && !l.first.Swap(true) || n > 0 && l.s.running() > 0); n++ {
		time.Sleep(100 * time.Microsecond)
	}
	return l.Context.Done()
}

func (l *late) Err() error {
	if l.asked.Add(1) <= 4 {
		return nil
	}
	return l.Context.Err()
}

// running is how many operations Close would wait for.
func (o *opened) running() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.jobs
}

// TestBatchEndsAtOnce: a context that ends while a batch begins leaves no block
// that is said to be read and is not, whoever sees the end first.
func TestBatchEndsAtOnce(t *testing.T) {
	s := openStore(t, testOptions(t.TempDir(), 1))
	var items []tiers.Item
	for i := range 8 {
		items = append(items, testItem(uint64(i+1), 9000), testItem(uint64(i+100), 2*maxGap))
	}
	put(t, s, items...)
	far := []tiers.Item{items[0], items[4], items[8], items[12]}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		reads := readsOf(t, s, far)
		for i, err := range s.ReadBatch(&late{Context: over, s: s}, reads) {
			var busy *pool.Busy
			switch {
			case err == nil && !bytes.Equal(reads[i].Dst, far[i].Data):
				t.Fatalf("block %d is said to be read, and other bytes are there", i)
			case errors.As(err, &busy):
				<-busy.Done()
			case err != nil && !errors.Is(err, context.Canceled):
				t.Fatalf("block %d: %v", i, err)
			}
			reads[i].Pin.Release()
		}
	}
	settleDown(s)
}

// A read that a dead server does not answer is counted when its reader learns of it.
func TestUnansweredIsCountedAtOnce(t *testing.T) {
	dir := t.TempDir()
	o := testOptions(dir, 1)
	s := openStore(t, o)
	it := testItem(1, 9000)
	put(t, s, it)
	closeStore(t, s)
	fs := vfstest.NewFault(machine(t, false))
	o.Incarnation, o.FS = 2, fs
	s = openStore(t, o)
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: ".bin", Block: server})
	reads := readsOf(t, s, []tiers.Item{it})
	told := make(chan error, 1)
	reads[0].Done = func(err error) { told <- err }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	result := make(chan []error)
	go func() { result <- s.ReadBatch(ctx, reads) }()
	<-told

	if n := s.Health().Reads.Unanswered; n != 1 {
		t.Errorf("%d reads are counted as unanswered while the server hangs", n)
	}
	close(server)
	<-result
	reads[0].Pin.Release()
	settleDown(s)
}

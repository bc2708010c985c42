package lustretest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// storm is the program that loads a tier until its stop file appears, or until
// it is killed.
type storm struct {
	options                lustre.Options
	journals, status, stop string
	number                 uint64
	uid                    int
	workers                int
	deadline               time.Duration
	keep                   int64 // bytes
	reads                  int   // after each put

	tier, reader *lustre.Tier
	journal      *journal
	pulse        *pulse
	seq          atomic.Uint64

	mu    sync.Mutex
	live  []batch        // durable, oldest first
	old   map[batch]bool // evicted
	bytes int64
	state state
}

// state is what a storm tells of itself. Counts are of requests, but for those
// of workers, which are of requests of either kind that were answered.
type state struct {
	Workers   []int `json:"workers"`
	Puts      int   `json:"puts"`       // durable
	Refused   int   `json:"refused"`    // failed at once or in time, nothing stored
	Busy      int   `json:"busy"`       // given up at their deadline
	Again     int   `json:"again"`      // durable after an earlier attempt failed
	Dropped   int   `json:"dropped"`    // batches that never became durable: their caller got the error
	Reads     int   `json:"reads"`      // right bytes
	Missed    int   `json:"missed"`     // reads that failed for now
	BusyReads int   `json:"busy_reads"` // of those, given up at their deadline
	Late      int64 `json:"late_ms"`    // longest time that an answer came after its deadline
	Overdue   int64 `json:"overdue_ms"` // the same without the guest's own delays; known once the storm has ended

	OverdueTwice int64          `json:"overdue_twice_ms"` // of the answer that came latest but one
	Stood        int64          `json:"stood_ms"`         // the guest's own delays in all; known once the storm has ended
	Wrong        int            `json:"wrong"`
	Lost         int            `json:"lost"`
	ReadOnly     bool           `json:"read_only"`
	Segment      string         `json:"segment"`
	Errors       map[string]int `json:"errors"` // by text without numbers
	Fatal        string         `json:"fatal"`
}

func (s *storm) flags(args []string) error {
	f := flag.NewFlagSet("storm", flag.ContinueOnError)
	f.StringVar(&s.options.Dir, "dir", "", "directory of the tier")
	f.StringVar(&s.journals, "journals", "", "folder of journals, on the host")
	f.StringVar(&s.status, "status", "", "file for the state, on the host")
	f.StringVar(&s.stop, "stop", "", "file that ends the storm")
	f.Uint64Var(&s.number, "storm", 0, "number of the storm")
	rank := f.Uint("rank", 0, "rank")
	f.IntVar(&s.uid, "uid", 0, "user to run as")
	f.IntVar(&s.workers, "workers", 3, "workers")
	f.DurationVar(&s.deadline, "deadline", 4500*time.Millisecond, "deadline of each request; a daemon gives as much")
	f.Int64Var(&s.keep, "keep", 24<<20, "bytes of blocks above which the oldest are evicted")
	f.Int64Var(&s.options.SegmentBytes, "segment", 2<<20, "bytes of a segment")
	f.Func("file-system", "a file system that lies", func(name string) error {
		if s.options.FS = liars[name]; s.options.FS == nil {
			return errors.New("no such liar")
		}
		return nil
	})
	f.IntVar(&s.options.Readers, "readers", 0, "reads in the kernel at once; 0: as by default")
	f.IntVar(&s.options.Writers, "writers", 0, "writes in the kernel at once; 0: as by default")
	f.IntVar(&s.reads, "reads", 0, "reads after each put")
	err := f.Parse(args)
	s.options.Rank = uint32(*rank)
	return err
}

func runStorm(args []string) error {
	s := &storm{}
	if err := s.flags(args); err != nil {
		return err
	}
	if s.uid != 0 {
		if err := errors.Join(syscall.Setgid(s.uid), syscall.Setuid(s.uid)); err != nil {
			return err
		}
	}
	var err error
	if s.journal, err = newJournal(journalPath(s.journals, s.number)); err != nil {
		return err
	}
	if s.tier, err = openTier(s.options); err != nil {
		return err
	}
	if err := s.tier.Recover(func(tiers.Entry) error { return nil }); err != nil {
		return err
	}
	reader := s.options
	reader.Rank += 100
	if s.reader, err = openTier(reader); err != nil {
		return err
	}
	if s.pulse, err = startPulse(); err != nil {
		return err
	}
	s.old, s.state.Workers, s.state.Errors = map[batch]bool{}, make([]int, s.workers), map[string]int{}
	return s.run()
}

// openTier opens a tier that soon tries a full file system again.
func openTier(o lustre.Options) (*lustre.Tier, error) {
	o.RetryFull = time.Second
	return lustre.Open(o)
}

// run works until the stop file is there, and then closes the tier.
func (s *storm) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for w := range s.workers {
		all.Go(func() {
			for ctx.Err() == nil {
				s.put(w)
				for range s.reads {
					s.read(w)
				}
			}
		})
	}
	for !exists(s.stop) {
		if err := s.tell(); err != nil {
			cancel()
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	cancel()
	all.Wait()
	if err := errors.Join(s.tier.Close(), s.reader.Close()); err != nil {
		s.count(func(st *state) { st.Errors["close: "+plain(err)]++ })
	}
	stood, overdue, err := s.pulse.end()
	if err != nil {
		return err
	}
	s.count(func(st *state) {
		st.Stood, st.Overdue, st.OverdueTwice = stood.Milliseconds(), overdue[0].Milliseconds(), overdue[1].Milliseconds()
	})
	return s.tell()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return path != "" && err == nil
}

// tell writes the state to its file in one step.
func (s *storm) tell() error {
	if s.status == "" {
		return nil
	}
	s.mu.Lock()
	s.state.ReadOnly = s.tier.Stats().Health.ReadOnly
	p, err := json.Marshal(s.state)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	f, err := os.Create(s.status + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(s.status+".new", s.status)
}

func (s *storm) count(change func(*state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// answered notes how a request ended, and how long after its deadline.
func (s *storm) answered(w int, ctx context.Context, err error) {
	end, _ := ctx.Deadline()
	late := time.Since(end)
	if late > 0 {
		s.pulse.answered(late)
	}
	s.count(func(st *state) {
		st.Workers[w]++
		st.Late = max(st.Late, late.Milliseconds())
		if err != nil {
			st.Errors[plain(err)]++
		}
	})
}

// attempts is how often a batch is put before it is given up.
const attempts = 5

// put stores one new batch, again when that fails, as one does whose blocks
// are still in memory.
func (s *storm) put(w int) {
	b := batch{s.number, s.seq.Add(1)}
	items := b.items()
	for try := range attempts {
		ctx, cancel := context.WithTimeout(context.Background(), s.deadline)
		err := s.tier.Put(ctx, items...)
		s.answered(w, ctx, err)
		cancel()
		if err == nil {
			s.durable(b, items, try > 0)
			return
		}
		var busy *lustre.Busy
		isBusy := errors.As(err, &busy)
		s.count(func(st *state) {
			if isBusy {
				st.Busy++
			} else {
				st.Refused++
			}
			if !errors.Is(err, tiers.ErrUnavailable) && !errors.Is(err, tiers.ErrFull) {
				st.Fatal = err.Error()
			}
		})
		time.Sleep(20 * time.Millisecond)
	}
	s.count(func(st *state) { st.Dropped++ })
}

func (s *storm) durable(b batch, items []tiers.Item, again bool) {
	if err := s.journal.note(notePut, b.seq); err != nil {
		s.count(func(st *state) { st.Fatal = err.Error() })
		return
	}
	var where string
	if at, err := s.tier.Segment(items[0].Info.ID); err == nil {
		where = at.Path
	}
	var old []batch
	s.mu.Lock()
	s.state.Puts++
	if again {
		s.state.Again++
	}
	s.state.Segment = where
	s.live = append(s.live, b)
	s.bytes += bytesOf(items)
	for s.bytes > s.keep {
		old = append(old, s.live[0])
		s.old[s.live[0]] = true
		s.bytes -= bytesOf(s.live[0].items())
		s.live = s.live[1:]
	}
	s.mu.Unlock()
	for _, b := range old {
		s.evict(b)
	}
}

func bytesOf(items []tiers.Item) (n int64) {
	for _, it := range items {
		n += it.Info.Size
	}
	return n
}

// evict forgets a batch once the journal says so. Blocks that somebody reads
// stay; that changes nothing, for nobody looks for them any more.
func (s *storm) evict(b batch) {
	if err := s.journal.note(noteEvict, b.seq); err != nil {
		s.count(func(st *state) { st.Fatal = err.Error() })
		return
	}
	for _, it := range b.items() {
		err := s.tier.Evict(it.Info.ID)
		if err != nil && !errors.Is(err, tiers.ErrPinned) {
			s.count(func(st *state) { st.Fatal = err.Error() })
		}
	}
}

// read reads one durable block, by its index or as another rank would.
func (s *storm) read(w int) {
	s.mu.Lock()
	if len(s.live) < 2*s.workers {
		s.mu.Unlock()
		return
	}
	b := s.live[rand.IntN(len(s.live))]
	s.mu.Unlock()
	items := b.items()
	it := items[rand.IntN(len(items))]
	ctx, cancel := context.WithTimeout(context.Background(), s.deadline)
	defer cancel()
	var got []byte
	var err error
	if rand.IntN(2) == 0 {
		got, err = readPinned(ctx, s.tier, it.Info)
	} else {
		got, err = s.readPlace(ctx, it.Info)
	}
	s.answered(w, ctx, err)
	var busy *lustre.Busy
	s.count(func(st *state) {
		switch {
		case err == nil && bytes.Equal(got, it.Data):
			st.Reads++
		case err == nil || errors.Is(err, tiers.ErrCorrupt):
			st.Wrong++
		case errors.Is(err, tiers.ErrUnavailable):
			st.Missed++
			if errors.As(err, &busy) {
				st.BusyReads++
			}
		case !s.old[b]: // else it was evicted before it was read
			st.Lost++
		}
	})
}

// readPinned reads a block by the tier's index.
func readPinned(ctx context.Context, t *lustre.Tier, info block.Info) ([]byte, error) {
	p, err := t.Pin(info.ID)
	if err != nil {
		return nil, err
	}
	defer p.Release()
	dst := make([]byte, info.Size)
	return dst, p.ReadInto(ctx, dst)
}

func (s *storm) readPlace(ctx context.Context, info block.Info) ([]byte, error) {
	at, err := s.tier.Segment(info.ID)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, info.Size)
	return dst, s.reader.ReadSegment(ctx, at, info, dst)
}

// plain is an error's text with its numbers and ids taken out.
func plain(err error) string {
	var out []byte
	for _, word := range bytes.Fields([]byte(err.Error())) {
		if bytes.ContainsAny(word, "0123456789") {
			word = []byte("…")
		}
		out = append(append(out, word...), ' ')
	}
	return fmt.Sprintf("%.200s", bytes.TrimSpace(out))
}

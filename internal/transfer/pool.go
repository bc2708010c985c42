package transfer

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"cascadekv/cascade"
	"cascadekv/cascade/residency"
	"cascadekv/gpu/direct"
	"cascadekv/internal/cpus"
	"cascadekv/internal/fault"
	"cascadekv/internal/region"
)

const (
	// maxWorkers bounds the goroutines that run jobs.
	maxWorkers = 4

	// MaxJobs is how many jobs of a client there may be that DONE has not
	// reported.
	MaxJobs = 1024

	// MaxJobBytes is what the commands of these may take in memory.
	MaxJobBytes = 64 << 20

	// mostJobs and mostJobBytes are the same of all clients together.
	mostJobs     = 16 << 10
	mostJobBytes = 256 << 20
)

// Pool runs the jobs of all clients. Workers come when there is work and go when
// there is none. It is safe for concurrent use.
type Pool struct {
	// Budget bounds what regions cost.
	Budget *Budget

	// Rings makes the rings of regions, with so many bytes of memory, that write too if they are to and there is room; nil: there are none.
	// Set before there are clients.
	Rings func(bytes int64, write bool) (*direct.Ring, error)

	store     *cascade.Store
	log       *slog.Logger
	most      int // workers
	turnBytes int64
	helpers   chan struct{} // one for each that spread has called
	patience  ringPatience
	words     words

	regions        atomic.Int64 // attached
	rings, serial  atomic.Int64 // that are not given back; that there were
	held           atomic.Int64 // as in ringPart, of all rings
	stored, loaded moved
	losses         residency.Losses // of loads, after what the store counts

	// mu guards the jobs of clients too, and the users of regions.
	mu struct {
		sync.Mutex
		ring    []*Client // with jobs in their queues; whose turn it is first
		workers int
		reading int  // jobs that have made all turns, and wait for their ring
		waiting int  // jobs that are not finished
		paused  bool // no job begins another turn

		jobs  int // of all clients, that Collect has not returned
		bytes int // of their commands
	}
}

// moved counts blocks that were copied between regions and the store.
type moved struct{ blocks, bytes atomic.Uint64 }

func (m *moved) add(size int64) {
	m.blocks.Add(1)
	m.bytes.Add(uint64(size))
}

// NewPool returns a pool over a store.
func NewPool(store *cascade.Store, log *slog.Logger) *Pool {
	most := min(cpus.Count(), maxWorkers)
	return &Pool{
		Budget:    newBudget(),
		store:     store,
		log:       log,
		most:      most,
		helpers:   make(chan struct{}, most-1),
		patience:  ringPatience{eventPatience, turnPatience, closePatience, probePatience},
		turnBytes: max(1, min(turnBytes, store.MemoryCapacity()/8)),
	}
}

// Regions returns how many regions are attached.
func (p *Pool) Regions() int64 { return p.regions.Load() }

// Stored returns how many blocks were copied out of regions, and their bytes.
func (p *Pool) Stored() (blocks, bytes uint64) { return p.stored.blocks.Load(), p.stored.bytes.Load() }

// Loaded returns how many blocks were copied into regions, and their bytes.
func (p *Pool) Loaded() (blocks, bytes uint64) { return p.loaded.blocks.Load(), p.loaded.bytes.Load() }

// Losses returns what loads lost of the blocks that the store gave them.
func (p *Pool) Losses() residency.LossCounts { return p.losses.Counts() }

// spread is a cascade.ParallelFor: what one core copies is far from what the memory
// gives. All spreads share a few helpers, so that a transfer that finds them
// busy goes on alone.
func (p *Pool) spread(n int, do func(i int)) {
	var next atomic.Int64
	work := func() {
		for i := next.Add(1); i <= int64(n); i = next.Add(1) {
			do(int(i) - 1)
		}
	}
	var called sync.WaitGroup
	for i := 1; i < n && p.callHelper(); i++ {
		called.Go(func() {
			defer fault.Guard()()
			defer func() { <-p.helpers }()
			work()
		})
	}
	work()
	called.Wait()
}

func (p *Pool) callHelper() bool {
	select {
	case p.helpers <- struct{}{}:
		return true
	default:
		return false
	}
}

// cost is about what a waiting transfer takes in memory.
func (t *Transfer) cost() int {
	n := len(t.status) + t.layout.Len()*16
	for _, k := range t.keys {
		n += len(k) + 16
	}
	return n
}

func (p *Pool) submit(j *job) (bad string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := j.of
	switch {
	case x.jobs[j.number] != nil:
		return fmt.Sprintf("ERR job %d is not finished, or not told by CASCADE.DONE yet; choose another number", j.number)
	case len(x.jobs) >= MaxJobs || x.bytes+j.bytes > MaxJobBytes && len(x.jobs) > 0:
		return fmt.Sprintf("BUSY %d jobs wait; try again after CASCADE.DONE", len(x.jobs))
	case p.mu.jobs >= mostJobs || p.mu.bytes+j.bytes > mostJobBytes && p.mu.jobs > 0:
		return fmt.Sprintf("BUSY the connections of this rank have %d jobs that CASCADE.DONE has not told of; try again", p.mu.jobs)
	}
	p.addLocked(j)
	j.at.users++
	p.mu.waiting++
	x.queue = append(x.queue, j)
	p.readyLocked(x)
	return ""
}

// addLocked counts a job until removeLocked.
func (p *Pool) addLocked(j *job) {
	j.of.jobs[j.number] = j
	j.of.bytes += j.bytes
	p.mu.bytes += j.bytes
	p.mu.jobs++
}

// addFinished is addLocked of a job that is over.
func (p *Pool) addFinished(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(j)
}

func (p *Pool) removeLocked(j *job) {
	delete(j.of.jobs, j.number)
	j.of.bytes -= j.bytes
	p.mu.bytes -= j.bytes
	p.mu.jobs--
}

// readyLocked sees to it that a client with a queue gets its turn.
func (p *Pool) readyLocked(x *Client) {
	if !slices.Contains(p.mu.ring, x) {
		p.mu.ring = append(p.mu.ring, x)
	}
	if p.mu.workers < p.most && !p.mu.paused {
		p.mu.workers++
		go p.work()
	}
}

// work makes turns until there is nothing to do. Clients take turns, and a job that
// has more to do is the next one of its client.
func (p *Pool) work() {
	defer fault.Guard()()
	for {
		j := p.take()
		if j == nil {
			return
		}
		p.made(j, j.turn(j.ctx))
	}
}

// take returns the job whose turn it is; nil ends the worker.
func (p *Pool) take() *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.ring) == 0 || p.mu.paused {
		p.mu.workers--
		return nil
	}
	x := p.mu.ring[0]
	p.mu.ring = p.mu.ring[1:]
	j := x.queue[0]
	x.queue = x.queue[1:]
	if len(x.queue) > 0 {
		p.mu.ring = append(p.mu.ring, x)
	}
	x.running++
	return j
}

// made ends a turn.
func (p *Pool) made(j *job, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := j.of
	x.running--
	switch {
	case more:
		x.queue = slices.Insert(x.queue, 0, j)
		p.readyLocked(x)
	case len(j.flights) > 0 || len(j.held) > 0:
		p.settleLocked(j)
	default:
		p.finishLocked(j)
	}
}

// finishLocked makes a job one that Collect returns.
func (p *Pool) finishLocked(j *job) {
	x := j.of
	j.over = true
	j.cancel()
	j.at.users--
	p.mu.waiting--
	x.done = append(x.done, j)
	for _, r := range x.open {
		if r.notify >= 0 {
			region.Ring(r.notify)
		}
	}
	select {
	case x.ended <- struct{}{}:
	default:
	}
}

// stopLocked cancels a job that is not over: one that waits for a turn at once, one
// that has it soon.
func (p *Pool) stopLocked(j *job) {
	j.cancel()
	x := j.of
	at := slices.Index(x.queue, j)
	if at < 0 {
		return
	}
	x.queue = slices.Delete(x.queue, at, at+1)
	if len(x.queue) == 0 {
		p.mu.ring = slices.DeleteFunc(p.mu.ring, func(o *Client) bool { return o == x })
	}
	j.giveUp()
	if len(j.flights) > 0 {
		p.settleLocked(j)
		return
	}
	p.finishLocked(j)
}

// Unfinished returns the number of jobs that wait or run.
func (p *Pool) Unfinished() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.waiting
}

// Rest has jobs begin no other turn until Resume, and reports whether none is in
// one, and no ring reads.
func (p *Pool) Rest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.paused = true
	return p.mu.workers == 0 && p.mu.reading == 0
}

// Resume undoes Rest.
func (p *Pool) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.paused {
		return
	}
	p.mu.paused = false
	for range p.mu.ring {
		if p.mu.workers < p.most {
			p.mu.workers++
			go p.work()
		}
	}
}

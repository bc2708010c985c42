package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/internal/cores"
	"cascadekv/internal/fault"
	"cascadekv/internal/region"
)

const (
	// maxWorkers bounds the goroutines that run jobs.
	maxWorkers = 4

	// maxJobs is how many jobs of a connection there may be that DONE has not
	// told of, and maxJobBytes what their commands may take in memory.
	maxJobs     = 1024
	maxJobBytes = 64 << 20

	// mostJobs and mostJobBytes are the same of all connections together.
	mostJobs     = 16 << 10
	mostJobBytes = 256 << 20

	// maxWait bounds a wait of CASCADE.DONE.
	maxWait = 5 * time.Second
)

// pool runs the jobs of all connections. Its mutex guards their states, and
// users of regions. Workers come when there is work and go when there is none.
type pool struct {
	most      int
	turnBytes int64
	helpers   chan struct{} // one for each that spread has called

	mu      sync.Mutex
	ring    []*transfers // with jobs in their queues; whose turn it is first
	workers int
	waiting int  // jobs that are not finished
	halted  bool // no job begins another turn

	jobs  int // of all connections, that DONE has not told of
	bytes int // of their commands

	budget  *regionBudget
	regions atomic.Int64 // attached, for Held
}

func newPool(store *cascade.Store) *pool {
	most := min(cores.Count(), maxWorkers)
	return &pool{
		most:      most,
		helpers:   make(chan struct{}, most-1),
		budget:    newRegionBudget(),
		turnBytes: max(1, min(turnBytes, store.MemoryCapacity()/8)),
	}
}

// spread is a cascade.Spread: what one core copies is far from what the memory
// gives. All spreads share a few helpers, so that a transfer that finds them
// busy goes on alone.
func (p *pool) spread(n int, do func(i int)) {
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

func (p *pool) callHelper() bool {
	select {
	case p.helpers <- struct{}{}:
		return true
	default:
		return false
	}
}

// transfers are the regions and jobs of one connection. regions and last
// belong to its goroutine, the rest is guarded by the pool's mutex.
type transfers struct {
	pool    *pool
	regions map[int64]*attached
	last    int64       // number of a region
	cost    region.Cost // of the regions

	jobs    map[int64]*job // that DONE has not told of
	queue   []*job         // wait for a turn
	done    []*job         // wait for DONE
	running int
	bytes   int           // of the commands in jobs
	open    []*attached   // whose eventfds are told
	ended   chan struct{} // capacity 1: a job has finished
}

func newTransfers(p *pool) *transfers {
	return &transfers{pool: p, regions: map[int64]*attached{}, jobs: map[int64]*job{}, ended: make(chan struct{}, 1)}
}

// add returns the number of a new region.
func (x *transfers) add(r *attached) int64 {
	x.last++
	x.put(x.last, r)
	return x.last
}

func (x *transfers) put(number int64, r *attached) {
	x.regions[number] = r
	x.cost = x.cost.Plus(r.cost)
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	x.open = append(x.open, r)
	x.pool.regions.Add(1)
}

// giveBack ends a region that no job uses.
func (x *transfers) giveBack(r *attached) error {
	x.pool.mu.Lock()
	x.open = slices.DeleteFunc(x.open, func(o *attached) bool { return o == r })
	x.pool.mu.Unlock()
	if r.notify >= 0 {
		_ = unix.Close(r.notify)
	}
	_ = unix.Close(r.fd)
	x.cost = x.cost.Minus(r.cost)
	defer x.pool.budget.give(r.cost)
	defer x.pool.regions.Add(-1)
	return r.Close() // of a large one the kernel has much to undo
}

// job is a transfer that nobody waits for on the socket.
type job struct {
	*transfer
	number int64
	of     *transfers
	at     *attached
	bytes  int
	ctx    context.Context
	cancel context.CancelFunc
	over   bool
}

func newJob(t *transfer, number int64, of *transfers, at *attached) *job {
	j := &job{transfer: t, number: number, of: of, at: at, bytes: t.cost()}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	return j
}

// submit queues a transfer, or refuses it.
func (c *conn) submit(t *transfer, at *attached) {
	j := newJob(t, t.opt.job, c.moves, at)
	if bad := c.srv.jobs.submit(j); bad != "" {
		j.cancel()
		c.wr.Error(bad)
		return
	}
	c.wr.Simple("QUEUED")
}

// cost is about what a waiting transfer takes in memory.
func (t *transfer) cost() int {
	n := len(t.status) + t.layout.Len()*16
	for _, k := range t.keys {
		n += len(k) + 16
	}
	return n
}

func (p *pool) submit(j *job) (bad string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := j.of
	switch {
	case x.jobs[j.number] != nil:
		return fmt.Sprintf("ERR job %d is not finished, or not told by CASCADE.DONE yet; choose another number", j.number)
	case len(x.jobs) >= maxJobs || x.bytes+j.bytes > maxJobBytes && len(x.jobs) > 0:
		return fmt.Sprintf("BUSY %d jobs wait; try again after CASCADE.DONE", len(x.jobs))
	case p.jobs >= mostJobs || p.bytes+j.bytes > mostJobBytes && p.jobs > 0:
		return fmt.Sprintf("BUSY the connections of this rank have %d jobs that CASCADE.DONE has not told of; try again", p.jobs)
	}
	p.knowLocked(j)
	j.at.users++
	p.waiting++
	x.queue = append(x.queue, j)
	p.ready(x)
	return ""
}

// knowLocked counts a job until forgetLocked.
func (p *pool) knowLocked(j *job) {
	j.of.jobs[j.number] = j
	j.of.bytes += j.bytes
	p.bytes += j.bytes
	p.jobs++
}

// know is knowLocked of a job that is over.
func (p *pool) know(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.knowLocked(j)
}

func (p *pool) forgetLocked(j *job) {
	delete(j.of.jobs, j.number)
	j.of.bytes -= j.bytes
	p.bytes -= j.bytes
	p.jobs--
}

// ready sees to it that a connection with a queue gets its turn. The caller
// holds the mutex.
func (p *pool) ready(x *transfers) {
	if !slices.Contains(p.ring, x) {
		p.ring = append(p.ring, x)
	}
	if p.workers < p.most && !p.halted {
		p.workers++
		go p.work()
	}
}

// work makes turns until there is nothing to do. Connections take turns, and a
// job that has more to do is the next one of its connection.
func (p *pool) work() {
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
func (p *pool) take() *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ring) == 0 || p.halted {
		p.workers--
		return nil
	}
	x := p.ring[0]
	p.ring = p.ring[1:]
	j := x.queue[0]
	x.queue = x.queue[1:]
	if len(x.queue) > 0 {
		p.ring = append(p.ring, x)
	}
	x.running++
	return j
}

// made ends a turn.
func (p *pool) made(j *job, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := j.of
	x.running--
	if !more {
		p.finish(j)
		return
	}
	x.queue = slices.Insert(x.queue, 0, j)
	p.ready(x)
}

// finish makes a job one that DONE tells of. The caller holds the mutex.
func (p *pool) finish(j *job) {
	x := j.of
	j.over = true
	j.cancel()
	j.at.users--
	p.waiting--
	x.done = append(x.done, j)
	for _, r := range x.open {
		if r.notify >= 0 {
			count(r.notify)
		}
	}
	select {
	case x.ended <- struct{}{}:
	default:
	}
}

// count adds 1 to an eventfd, unless that is full: its reader has enough to
// wake for.
func count(event int) {
	fds := [1]unix.PollFd{{Fd: int32(event), Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds[:], 0); n == 1 && err == nil {
		_, _ = unix.Write(event, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// cancel ends a job early; false when there is no such unfinished job.
func (p *pool) cancel(x *transfers, number int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := x.jobs[number]
	if j == nil || j.over {
		return false
	}
	p.stop(j)
	return true
}

// stop cancels a job that is not over: one that waits for a turn at once, one
// that has it soon. The caller holds the mutex.
func (p *pool) stop(j *job) {
	j.cancel()
	x := j.of
	at := slices.Index(x.queue, j)
	if at < 0 {
		return
	}
	x.queue = slices.Delete(x.queue, at, at+1)
	if len(x.queue) == 0 {
		p.ring = slices.DeleteFunc(p.ring, func(o *transfers) bool { return o == x })
	}
	j.giveUp()
	p.finish(j)
}

// stopAll cancels every job of a connection.
func (p *pool) stopAll(x *transfers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range x.jobs {
		if !j.over {
			p.stop(j)
		}
	}
}

// unfinished is the number of jobs that wait or run.
func (p *pool) unfinished() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// collect hands over the finished jobs.
func (p *pool) collect(x *transfers) []*job {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := x.done
	x.done = nil
	for _, j := range done {
		p.forgetLocked(j)
	}
	return done
}

// ask answers a question with the mutex held.
func (p *pool) ask(ready func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ready()
}

// awaitJobs waits until ready, which is asked with the pool's mutex held, says
// so, for timeout (nil: for ever), or until connections are to rest (nil: it
// does not matter). If the client hangs up, all jobs of the connection are
// cancelled.
func (c *conn) awaitJobs(timeout <-chan time.Time, halted <-chan struct{}, ready func() bool) {
	isReady := func() bool { return c.srv.jobs.ask(ready) }
	if isReady() {
		return
	}
	gone, err := c.sock.HangUp()
	if err != nil {
		c.srv.jobs.stopAll(c.moves) // the server ends
	}
	for !isReady() {
		select {
		case <-c.moves.ended:
		case <-gone:
			if c.sock.HungUp() {
				c.srv.jobs.stopAll(c.moves)
				gone = nil
			}
		case <-timeout:
			return
		case <-halted:
			return
		}
	}
}

// endTransfers cancels the connection's jobs, waits until none of them touches
// a region, and gives the regions back.
func (c *conn) endTransfers() {
	x := c.moves
	if x == nil {
		return
	}
	c.srv.jobs.stopAll(x)
	for !x.idle() {
		<-x.ended
	}
	c.srv.jobs.collect(x) // nobody else will
	for _, r := range x.regions {
		if err := x.giveBack(r); err != nil {
			c.srv.log.Error("region is not given back", "conn", c.id, "err", err)
		}
	}
	clear(x.regions)
}

func (x *transfers) idle() bool {
	x.pool.mu.Lock()
	defer x.pool.mu.Unlock()
	return len(x.queue) == 0 && x.running == 0
}

// cmdCascadeDone tells of finished jobs.
func cmdCascadeDone(c *conn, args [][]byte) {
	wait := time.Duration(0)
	if len(args) == 2 {
		ms, err := strconv.ParseInt(string(args[1]), 10, 64)
		if err != nil || ms < 0 {
			c.wr.Error("ERR value is not an integer or out of range")
			return
		}
		wait = time.Duration(min(ms, maxWait.Milliseconds())) * time.Millisecond
	}
	if c.moves == nil {
		c.wr.Array(0)
		return
	}
	if wait > 0 {
		timer, end := time.NewTimer(wait), time.Now().Add(wait)
		defer timer.Stop()
		ready := func() bool { return len(c.moves.done) > 0 || len(c.moves.jobs) == 0 }
		halted := c.srv.poller.QuiesceBegins()
		c.awaitJobs(timer.C, halted, ready)
		if left := time.Until(end); isClosed(halted) && left > 0 && !c.srv.jobs.ask(ready) {
			c.putBack("CASCADE.DONE", millis(left))
			return
		}
	}
	done := c.srv.jobs.collect(c.moves)
	c.wr.Array(len(done))
	for _, j := range done {
		c.wr.Array(2)
		c.wr.Int(j.number)
		c.wr.Bulk(j.status)
	}
}

// cmdCascadeCancel ends a job early.
func cmdCascadeCancel(c *conn, args [][]byte) {
	n, err := strconv.ParseInt(string(args[1]), 10, 64)
	if err != nil {
		c.wr.Error("ERR value is not an integer or out of range")
		return
	}
	c.intOf(c.moves != nil && c.srv.jobs.cancel(c.moves, n))
}

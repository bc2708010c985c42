package e2e

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/resp"
)

// What a churn is made of.
const (
	churnRanks   = 4
	churnClients = 6
	churnMemory  = "32MiB" // of each rank; all contents take four times as much
	churnBudget  = "64MiB" // of lustre.dir, while space is short

	// Of ranks with disks below memory, which is then less.
	churnDisks      = "48MiB" // of each rank, all disks together
	churnDiskMemory = "12MiB"
)

// mostShown bounds the faults of a kind that are described.
const mostShown = 5

// churnVariable is how long TestChurn lasts, seedVariable what it draws its
// commands from, and disksVariable that ranks have disks; clients that run at once make two runs of a seed
// differ all the same.
const (
	churnVariable = "CASCADE_E2E_CHURN"
	seedVariable  = "CASCADE_E2E_SEED"
	disksVariable = "CASCADE_E2E_DISKS"
)

// churn is a job of ranks whose clients do everything that changes what is stored.
type churn struct {
	*job
	m      *churnModel
	seed   uint64
	rng    *rand.Rand // of the test's goroutine
	gossip []string   // address of each rank
	base   [churnRanks]churnHoldings
	disks  bool // below memory
	small  bool // space is short
	stop   atomic.Bool

	marks   sync.Mutex            // guards these three: held to mark what is durable
	lenient bool                  // while space is short anything may be given up
	since   time.Time             // of lenient: what was put before may have been given up
	lostAt  [churnRanks]time.Time // when a rank lost what was in no segment, all or some

	trailing sync.Mutex         // one trail at a time
	missing  map[*churnKey]bool // what was found to be lost; of the test's goroutine

	kills, terms, absences, upgrades int

	counts struct {
		puts, gets, hits, deletes, expiries, clears, looks, drains, refused, broken, missedDurable atomic.Int64
		stale, wrong, lost, hung                                                                   atomic.Int64
	}
}

// TestChurn has clients of four ranks with little memory put, overwrite, delete, expire,
// clear, probe, get and drain the same contents under many names, while ranks are killed,
// stay away, come back with or without their memory, and space runs short. Every get is
// compared with a model of one store. At the end the directory has each name that the
// model has and no other, and nothing is left over: churn_end_test.go.
//
// A get may miss, but for one thing: what was put on a rank before a drain of that rank
// that has ended, and not changed since, is found within half a minute after the ranks are
// together, unless lustre.budget was set meanwhile.
//
// While a rank is absent, and for a moment before, what changes may be undone: the rank did
// not learn of it (churnModel.firm). Nothing else that was deleted or replaced comes back.
//
// "make churn FOR=10m SEED=7" runs it; from two minutes on space runs short for a fifth of the
// time. A seed that was logged draws the same again, at other moments.
func TestChurn(t *testing.T) {
	if os.Getenv(churnVariable) == "" {
		t.Skip("make churn runs it, for as long as FOR says")
	}
	length, err := time.ParseDuration(os.Getenv(churnVariable))
	must(t, err)
	seed, err := strconv.ParseUint(envOr(seedVariable, strconv.FormatUint(rand.Uint64()%1e6, 10)), 10, 64)
	must(t, err)
	t.Logf("%s=%d %s=%v", seedVariable, seed, churnVariable, length)
	c := startChurn(t, seed)
	var clients sync.WaitGroup
	for i := range churnClients {
		clients.Go(func() { c.client(i) })
	}
	t.Cleanup(func() { c.stop.Store(true); clients.Wait() })
	c.disturb(time.Now().Add(length))
	if c.small {
		c.spaceShort(false)
	}
	c.stop.Store(true)
	clients.Wait()
	c.report("churned")
	c.finish()
}

func envOr(name, or string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return or
}

// startChurn starts the ranks.
func startChurn(t *testing.T, seed uint64) *churn {
	disks, memory := os.Getenv(disksVariable) != "", churnMemory
	if disks {
		memory = churnDiskMemory
	}
	c := &churn{missing: map[*churnKey]bool{}, job: newJob(t, memory, true), disks: disks, m: newChurnModel(seed, 4, 1200, 4000), seed: seed, rng: rand.New(rand.NewPCG(seed, 2))}
	for range churnRanks {
		c.gossip = append(c.gossip, freePort(t)) // which it has again when it comes back: the others' seed
	}
	c.more = []string{"--lustre-segment-bytes", "4MiB", "--peers-seeds", strings.Join(c.gossip, ",")}
	for i := range churnRanks {
		p := newPlace(t, c.shm)
		p.lustre = c.lustre
		c.places, c.ranks = append(c.places, p), append(c.ranks, nil)
		c.up(i)
	}
	c.agree(churnRanks)
	for i, r := range c.ranks {
		c.base[i] = holdingsOf(t, r)
	}
	return c
}

// up starts rank i.
func (c *churn) up(i int) {
	args := []string{"--admin-listen", adminSocket(c.places[i]), "--peers-gossip", c.gossip[i]}
	if c.disks {
		args = append(args, "--nvme-paths", strings.Join(disksOf(c.places[i]), ","), "--nvme-bytes", churnDisks, "--nvme-file-bytes", "16KiB")
	}
	if c.small {
		args = append(args, "--lustre-budget", churnBudget)
	}
	c.add(i, args...)
}

func disksOf(p place) []string {
	return []string{filepath.Join(p.dir, "disk0"), filepath.Join(p.dir, "disk1")}
}

func adminSocket(p place) string { return filepath.Join(p.dir, "admin.sock") }

// disturb takes ranks away and brings them back, until it is time to end.
func (c *churn) disturb(end time.Time) {
	began := time.Now()
	length := end.Sub(began)
	shortFrom, shortTo := began.Add(length*45/100), began.Add(length*65/100)
	for {
		c.pause(min(length/5, time.Duration(12+c.rng.IntN(8))*time.Second), end)
		now := time.Now()
		if now.After(end) {
			return
		}
		switch {
		case length >= 2*time.Minute && !c.small && now.After(shortFrom) && now.Before(shortTo):
			c.spaceShort(true)
		case c.small && now.After(shortTo):
			c.spaceShort(false)
		default:
			c.lose(c.rng.IntN(churnRanks))
		}
		c.audit(200)
	}
}

// pause waits while clients work, at most until the end.
func (c *churn) pause(d time.Duration, end time.Time) {
	time.Sleep(max(0, min(d, time.Until(end)+time.Millisecond)))
}

// lose ends a rank in one of several ways, and starts it again, or upgrades it, of which clients see nothing.
func (c *churn) lose(i int) {
	if c.rng.IntN(4) == 0 {
		c.upgrades++
		upgrade(c.t, c.ranks[i])
		return
	}
	c.m.calm.begin(i)
	switch c.rng.IntN(5) {
	case 0:
		c.terms++
		end(c.t, c.ranks[i])
	case 1, 2:
		c.kill(i)
	case 3:
		c.kill(i)
		c.loseMemory(i)
	case 4: // another rank adopts its segments
		c.absences++
		if c.kill(i); c.rng.IntN(2) == 0 {
			c.loseMemory(i)
		}
		c.agree(churnRanks - 1)
		time.Sleep(time.Duration(4+c.rng.IntN(6)) * time.Second)
	}
	c.up(i)
	c.agree(churnRanks)
	c.m.calm.end()
}

// kill kills a rank. What had just left its memory for its disks may be lost with it (docs/nvme.md).
func (c *churn) kill(i int) {
	c.kills++
	c.ranks[i].kill()
	if c.disks {
		c.noteLoss(i)
	}
}

// noteLoss notes that a rank has lost what was in no segment.
func (c *churn) noteLoss(i int) {
	c.marks.Lock()
	defer c.marks.Unlock()
	c.lostAt[i] = time.Now()
}

// loseMemory takes the memory of a rank that was killed away, and as often as not its disks, if it has any.
func (c *churn) loseMemory(i int) {
	c.noteLoss(i)
	must(c.t, os.Remove(c.ranks[i].arena))
	if c.disks && c.rng.IntN(2) == 0 {
		for _, dir := range disksOf(c.places[i]) {
			must(c.t, os.RemoveAll(dir))
		}
	}
}

// spaceShort restarts one rank after the other with another budget.
func (c *churn) spaceShort(short bool) {
	c.setLenient(true)
	c.small = short
	for i := range c.ranks {
		c.m.calm.begin(i)
		c.terms++
		end(c.t, c.ranks[i])
		c.up(i)
		c.agree(churnRanks)
		c.m.calm.end()
	}
	if !short {
		c.setLenient(false)
	}
}

// setLenient says whether anything may be given up from here on.
func (c *churn) setLenient(lenient bool) {
	c.marks.Lock()
	defer c.marks.Unlock()
	c.lenient, c.since = lenient, time.Now()
	c.m.forgetDrained()
}

// audit looks for some of what must be there.
func (c *churn) audit(most int) {
	keys := c.m.durable()
	c.rng.Shuffle(len(keys), func(i, k int) { keys[i], keys[k] = keys[k], keys[i] })
	keys = keys[:min(most, len(keys))]
	dialed := c.newClients()
	defer dialed.close()
	for _, k := range keys {
		i := c.rng.IntN(churnRanks)
		verdict := right
		for tries, deadline := 0, time.Now().Add(3*settles); ; tries++ {
			verdict = c.get(dialed, i, k)
			if verdict != lostDurable || time.Now().After(deadline) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if verdict == lostDurable {
			c.lostKey(i, k)
		}
	}
	c.t.Logf("audit: %d of %d durable keys", len(keys), len(c.m.durable()))
}

// lostKey reports that a durable key is not found on rank i, and what the directory has of it.
func (c *churn) lostKey(i int, k *churnKey) {
	if c.missing[k] {
		return
	}
	c.missing[k] = true
	if c.counts.lost.Add(1) <= mostShown {
		c.t.Errorf("%s %s is not found on rank %d though a drain made it durable%s\n%s", k.ns, k.name, i, c.m.history(k), c.trail(k, none))
	}
}

// connections are a client's, one to each rank that it has asked.
type connections struct {
	c       *churn
	all     [churnRanks]*resp.Client
	buf     []byte
	content int // of the last get that hit
}

func (c *churn) newClients() *connections {
	return &connections{c: c, buf: make([]byte, churnMost+8)}
}

// to returns a connection to rank i, nil when it does not listen.
func (d *connections) to(i int) *resp.Client {
	if d.all[i] == nil {
		one, err := resp.Dial("unix", d.c.places[i].socket, patience/2)
		if err != nil {
			return nil
		}
		d.all[i] = one
	}
	return d.all[i]
}

// failed looks at the error of a command: whether the server answered with it, which the
// connection outlives.
func (d *connections) failed(i int, err error) (answered bool) {
	if errors.Is(err, resp.ErrServer) || errors.Is(err, resp.ErrNull) {
		return true
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		d.c.counts.hung.Add(1)
		d.c.t.Errorf("rank %d does not answer: %v", i, err)
	}
	d.c.counts.broken.Add(1)
	d.all[i].Close()
	d.all[i] = nil
	return false
}

func (d *connections) close() {
	for _, one := range d.all {
		if one != nil {
			one.Close()
		}
	}
}

// client is one client of all ranks.
func (c *churn) client(number int) {
	rng := rand.New(rand.NewPCG(c.seed, 100+uint64(number)))
	d := c.newClients()
	defer d.close()
	for !c.stop.Load() {
		i := rng.IntN(churnRanks)
		if d.to(i) == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		c.command(d, i, rng)
		time.Sleep(time.Duration(rng.IntN(4000)) * time.Microsecond)
	}
}

// command does one thing on rank i.
func (c *churn) command(d *connections, i int, rng *rand.Rand) {
	k := c.m.keys[rng.IntN(len(c.m.keys))]
	switch n := rng.IntN(10000); {
	case n < 3500:
		c.put(d, i, k, c.m.pool.draw(rng))
	case n < 4300:
		c.del(d, i, k)
	case n < 4600:
		c.expire(d, i, k, time.Duration(rng.IntN(20000))*time.Millisecond)
	case n < 5200:
		c.look(d, i, k)
	case n < 5230:
		c.drain(d, i)
	case n < 5232:
		c.clear(d, i, c.m.spaces[rng.IntN(len(c.m.spaces))])
	default:
		if c.get(d, i, k) == lostDurable {
			c.counts.missedDurable.Add(1)
		}
	}
}

// draw picks a content: a quarter of them are most of what is put.
func (p *churnPool) draw(rng *rand.Rand) int {
	if rng.IntN(2) == 0 {
		return rng.IntN(len(p.sizes) / 4)
	}
	return rng.IntN(len(p.sizes))
}

// change has rank i change a key, to a content or so that it ends, while nobody else does.
// send does it, and returns when the key ends, and whether it was there to be changed. False
// is returned where that is not known, or it was not.
func (c *churn) change(d *connections, i int, k *churnKey, content int, send func(*resp.Client) (ends time.Time, was bool, err error)) (changed bool) {
	space := c.space(k)
	space.mu.RLock()
	defer space.mu.RUnlock()
	k.writing.Lock()
	defer k.writing.Unlock()
	one := d.to(i)
	if one == nil {
		return false
	}
	at := k.begin(content, i)
	ends, was, err := send(one)
	if err != nil {
		if d.failed(i, err) && content != none {
			c.counts.refused.Add(1)
		}
		return false
	}
	if was {
		k.answered(at, ends)
	}
	return was
}

// put stores a content under a key.
func (c *churn) put(d *connections, i int, k *churnKey, content int) (stored bool) {
	return c.change(d, i, k, content, func(one *resp.Client) (ends time.Time, was bool, err error) {
		c.counts.puts.Add(1)
		d.buf = c.m.pool.value(content, d.buf)
		if k.ns == "redis/0" && content%2 == 0 {
			return ends, true, one.Set(k.name, d.buf)
		}
		args := []string{"CASCADE.PUT", k.name, "NS", k.ns}
		if k.parent != "" && content%4 != 0 {
			args = append(args, "PARENT", k.parent)
		}
		one.SendValue(2, d.buf, args...)
		if err = one.Flush(); err == nil {
			_, err = one.Receive()
		}
		return ends, true, err
	})
}

func (c *churn) space(k *churnKey) *churnSpace {
	for _, s := range c.m.spaces {
		if s.name == k.ns {
			return s
		}
	}
	return nil
}

// del ends a key.
func (c *churn) del(d *connections, i int, k *churnKey) {
	c.change(d, i, k, none, func(one *resp.Client) (ends time.Time, was bool, err error) {
		c.counts.deletes.Add(1)
		command := []string{"CASCADE.DEL", k.ns, k.name}
		if k.ns == "redis/0" {
			command = []string{"UNLINK", k.name}
		}
		_, err = one.Do(command...)
		return ends, true, err
	})
}

// expire has a key end after a while. Only redis/0 has a command for that; elsewhere the
// key is deleted.
func (c *churn) expire(d *connections, i int, k *churnKey, after time.Duration) {
	if k.ns != "redis/0" {
		c.del(d, i, k)
		return
	}
	c.change(d, i, k, none, func(one *resp.Client) (ends time.Time, was bool, err error) {
		c.counts.expiries.Add(1)
		reply, err := one.Do("PEXPIRE", k.name, strconv.FormatInt(after.Milliseconds(), 10))
		return time.Now().Add(after), err == nil && reply.Int == 1, err
	})
}

// clear empties a namespace.
func (c *churn) clear(d *connections, i int, s *churnSpace) (answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := d.to(i)
	if one == nil {
		return false
	}
	var at []int
	for _, k := range s.keys {
		at = append(at, k.begin(none, i))
	}
	c.counts.clears.Add(1)
	if _, err := one.Do("CASCADE.CLEAR", s.name); err != nil {
		d.failed(i, err)
		return false
	}
	for n, k := range s.keys {
		k.answered(at[n], time.Time{})
	}
	return true
}

// drain has a rank write what it has, and notes what is durable from then on.
func (c *churn) drain(d *connections, i int) {
	one := d.to(i)
	if one == nil {
		return
	}
	began := time.Now()
	c.counts.drains.Add(1)
	if _, err := one.Do("CASCADE.DRAIN"); err != nil {
		if d.failed(i, err) {
			c.t.Logf("drain of rank %d: %v", i, err)
		}
		return
	}
	c.marks.Lock()
	defer c.marks.Unlock()
	if !c.lenient {
		since := c.since
		if c.lostAt[i].After(since) {
			since = c.lostAt[i]
		}
		c.m.drained(i, since, began)
	}
}

// get reads a key and compares it with the model.
func (c *churn) get(d *connections, i int, k *churnKey) judgement {
	one := d.to(i)
	if one == nil {
		return missed
	}
	began := time.Now()
	one.Send("CASCADE.GET", "NS", k.ns, k.name)
	err := one.Flush()
	n := 0
	d.buf = d.buf[:cap(d.buf)]
	if err == nil {
		n, err = one.ReceiveInto(d.buf)
	}
	c.counts.gets.Add(1)
	if err != nil && !errors.Is(err, resp.ErrShortBuffer) {
		if !d.failed(i, err) {
			return missed
		}
		return c.m.judge(k, began, none, false)
	}
	c.counts.hits.Add(1)
	content := none
	if err == nil {
		content = c.m.pool.content(d.buf[:n])
	}
	d.content = content
	verdict := c.m.judge(k, began, content, true)
	switch verdict {
	case stale:
		if c.counts.stale.Add(1) <= mostShown { // see finish
			c.t.Logf("%s %s on rank %d: stale content %d%s\n%s", k.ns, k.name, i, content, c.m.history(k), c.trail(k, content))
		}
	case wrong:
		if c.counts.wrong.Add(1) <= mostShown {
			c.t.Errorf("%s %s on rank %d: %d wrong bytes, content %d%s\n%s", k.ns, k.name, i, n, content, c.m.history(k), c.trail(k, content))
		}
	}
	return verdict
}

// look asks for keys without reading them.
func (c *churn) look(d *connections, i int, k *churnKey) {
	one := d.to(i)
	if one == nil {
		return
	}
	command := []string{"CASCADE.PROBE", k.ns, k.name}
	if k.parent != "" {
		command = []string{"CASCADE.PROBE", k.ns, k.parent, k.name}
	} else if k.ns == "redis/0" {
		command = []string{"EXISTS", k.name}
	}
	c.counts.looks.Add(1)
	if _, err := one.Do(command...); err != nil {
		d.failed(i, err)
	}
}

// report logs what was done, and found.
func (c *churn) report(what string) {
	n := &c.counts
	c.t.Logf("%s: %d puts (%d refused), %d gets (%d hits), %d deletes, %d expiries, %d clears, %d looks, %d drains; %d commands cut off; "+
		"%d kills (%d of them absences), %d ends, %d upgrades; %d wrong, %d stale, %d durable lost (%d missed for a while), %d hung",
		what, n.puts.Load(), n.refused.Load(), n.gets.Load(), n.hits.Load(), n.deletes.Load(), n.expiries.Load(), n.clears.Load(), n.looks.Load(), n.drains.Load(), n.broken.Load(),
		c.kills, c.absences, c.terms, c.upgrades, n.wrong.Load(), n.stale.Load(), n.lost.Load(), n.missedDurable.Load(), n.hung.Load())
}

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testneed"
)

// network is a namespace for each of four ranks and one for what joins them:
// two bridges with two ranks each, and a cable between the bridges. A cable
// that is cut loses packets and tells nobody.
type network struct {
	t   *testing.T
	hub string
	of  []string // the ranks' namespaces
}

const cable = "cable0"

func newNetwork(t *testing.T, ranks int) *network {
	t.Helper()
	needNamespaces(t)
	n := &network{t: t, hub: fmt.Sprintf("cascade-e2e-%d", os.Getpid())}
	out, err := exec.Command("ip", "netns", "add", n.hub).CombinedOutput()
	testneed.That(t, err == nil, "the right to make network namespaces", "run this test where "+strings.TrimSpace(string(out))+" does not happen")
	t.Cleanup(func() { n.remove(n.hub) })
	n.ip("-n", n.hub, "link", "add", cable, "type", "veth", "peer", "name", "cable1")
	for side := range 2 {
		bridge, end := fmt.Sprint("bridge", side), fmt.Sprint("cable", side)
		n.ip("-n", n.hub, "link", "add", bridge, "type", "bridge")
		n.ip("-n", n.hub, "link", "set", bridge, "up")
		n.plug(end, bridge)
	}
	for i := range ranks {
		n.addRank(i, fmt.Sprint("bridge", i*2/ranks))
	}
	return n
}

// addRank makes the namespace of a rank and connects it.
func (n *network) addRank(i int, bridge string) {
	ns, port := fmt.Sprintf("%s-%d", n.hub, i), fmt.Sprint("port", i)
	n.ip("netns", "add", ns)
	n.t.Cleanup(func() { n.remove(ns) })
	n.of = append(n.of, ns)
	n.ip("-n", n.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns)
	n.plug(port, bridge)
	n.ip("-n", ns, "addr", "add", addrOf(i)+"/24", "dev", "eth0")
	n.ip("-n", ns, "link", "set", "eth0", "up")
	n.ip("-n", ns, "link", "set", "lo", "up")
}

func addrOf(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

func (n *network) plug(port, bridge string) {
	n.ip("-n", n.hub, "link", "set", port, "master", bridge)
	n.ip("-n", n.hub, "link", "set", port, "up")
}

func (n *network) cut()  { n.ip("-n", n.hub, "link", "set", cable, "down") }
func (n *network) heal() { n.ip("-n", n.hub, "link", "set", cable, "up") }

func (n *network) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func (n *network) remove(ns string) {
	if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
		n.t.Errorf("namespace %s stays: %v: %s", ns, err, out)
	}
}

// startInNetwork starts a rank in each namespace. Their sockets are files, which
// the test reaches from outside.
func startInNetwork(t *testing.T, n *network, shm string) *job {
	t.Helper()
	j := newJob(t, shm, false)
	j.seed = addrOf(0) + ":7946"
	for i, ns := range n.of {
		j.within = []string{"ip", "netns", "exec", ns}
		j.add(i, "--peers-listen", addrOf(i)+":0", "--peers-gossip", addrOf(i)+":7946", "--peers-seeds", j.seed)
	}
	j.agree(len(n.of))
	return j
}

// writer is one rank's load: values of its own keys, which only it writes, and
// reads of everybody's.
type writer struct {
	rank   int
	client *resp.Client
	all    []*writer

	mu     sync.Mutex
	newest []int // version of each key that was acknowledged, from 1
	counts counts
}

// counts are what writers did in some stretch of time.
type counts struct {
	ops     int
	misses  int // reads that found nothing
	old     int // reads that found an earlier version
	slowGet time.Duration
	slowPut time.Duration
}

const netValueBytes = 8 << 10

func netKey(rank, i int) string { return fmt.Sprintf("w%d-k%d", rank, i) }

func netValue(rank, i, version int) []byte {
	return content(netKey(rank, i), uint64(5*version+1), netValueBytes)
}

// write stores the next version of key i, or a first one.
func (w *writer) write(t *testing.T, i int) {
	w.mu.Lock()
	if i == len(w.newest) {
		w.newest = append(w.newest, 0)
	}
	version := w.newest[i] + 1
	w.mu.Unlock()
	began := time.Now()
	if err := w.client.Set(netKey(w.rank, i), netValue(w.rank, i, version)); err != nil {
		t.Errorf("SET on rank %d: %v", w.rank, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest[i] = version
	w.counts.slowPut = max(w.counts.slowPut, time.Since(began))
	w.counts.ops++
}

// read gets key i of another writer, or its own, and judges what comes back.
// It returns the version, 0 for none.
func (w *writer) read(t *testing.T, of *writer, i int) int {
	room := make([]byte, netValueBytes+64)
	began := time.Now()
	n, err := w.client.Get(netKey(of.rank, i), room)
	took := time.Since(began)
	of.mu.Lock()
	newest := of.newest[i]
	of.mu.Unlock()
	found := 0
	if err == nil {
		found = versionIn(room[:n], of.rank, i, newest+1) // one more may be on its way
		if found == 0 {
			t.Errorf("rank %d: %s has %d wrong bytes", w.rank, netKey(of.rank, i), n)
		}
	} else if !errors.Is(err, resp.ErrNull) {
		t.Errorf("GET on rank %d: %v", w.rank, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts.slowGet = max(w.counts.slowGet, took)
	w.counts.ops++
	if found == 0 {
		w.counts.misses++
	} else if found < newest {
		w.counts.old++
	}
	return found
}

// versionIn tells which version some bytes are, at most newest; 0: none.
func versionIn(got []byte, rank, i, newest int) int {
	for v := newest; v > 0; v-- {
		if string(got) == string(netValue(rank, i, v)) {
			return v
		}
	}
	return 0
}

// load runs all writers until the end, one goroutine each.
func load(t *testing.T, writers []*writer, end time.Time) {
	var all sync.WaitGroup
	for _, w := range writers {
		all.Go(func() {
			for step := 0; time.Now().Before(end) && !t.Failed(); step++ {
				w.mu.Lock()
				n := len(w.newest)
				w.mu.Unlock()
				if step%10 == 0 {
					w.write(t, n) // a new one
				} else if step%10 == 5 {
					w.write(t, step%n)
				} else {
					of := w.all[(w.rank+step)%len(w.all)]
					of.mu.Lock()
					n = len(of.newest)
					of.mu.Unlock()
					w.read(t, of, step*7%n)
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	all.Wait()
}

// total sums up and resets what the writers counted.
func total(writers []*writer) (sum counts) {
	for _, w := range writers {
		c := w.counts
		sum.ops, sum.misses, sum.old = sum.ops+c.ops, sum.misses+c.misses, sum.old+c.old
		sum.slowGet, sum.slowPut = max(sum.slowGet, c.slowGet), max(sum.slowPut, c.slowPut)
		w.counts = counts{}
	}
	return sum
}

func (c counts) judge(t *testing.T, when string) {
	t.Helper()
	t.Logf("%s: %d commands; %d reads found nothing, %d an earlier version; slowest get %v, put %v",
		when, c.ops, c.misses, c.old, c.slowGet.Round(time.Millisecond), c.slowPut.Round(time.Millisecond))
	if c.slowGet > getBound+scheduling || c.slowPut > putBound+scheduling {
		t.Errorf("%s: slower than the deadlines of %v and %v", when, getBound, putBound)
	}
}

// TestPartition cuts four ranks into two halves for ten seconds, with load on
// both sides, and joins them again.
func TestPartition(t *testing.T) {
	const cut = 10 * time.Second
	n := newNetwork(t, 4)
	j := startInNetwork(t, n, "64MiB")
	writers := make([]*writer, len(j.ranks))
	for i, c := range j.clients() {
		writers[i] = &writer{rank: i, client: c, all: writers}
		for k := range 20 {
			writers[i].write(t, k)
		}
	}
	chain := marks{"chain", 16}
	chain.put(t, j.ranks[3].dial(t))
	load(t, writers, time.Now().Add(2*time.Second))
	total(writers).judge(t, "before")

	n.cut()
	var request sync.WaitGroup
	request.Go(func() {
		time.Sleep(cut / 3)
		requestWhileCut(t, j.ranks[0].socket, chain)
	})
	defer request.Wait() // also if the test ends before it
	load(t, writers, time.Now().Add(cut))
	total(writers).judge(t, "while cut")
	n.heal()
	healed := time.Now()
	load(t, writers, healed.Add(2*time.Second))
	total(writers).judge(t, "after the heal")

	j.agree(4)
	agreed := time.Since(healed)
	blocks := converge(t, writers)
	request.Wait()
	t.Logf("all ranks alive in one ring %v after the heal; all %d values found from all ranks, in their newest version, after %v",
		agreed.Round(time.Millisecond), blocks, time.Since(healed).Round(time.Millisecond))
	total(writers).judge(t, "converging")
}

// requestWhileCut does what an engine does for a request whose blocks are on the
// other side: a probe, and gets in one go for what it found.
func requestWhileCut(t *testing.T, socket string, m marks) {
	c, err := resp.Dial("unix", socket, patience)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	var keys []string
	for i := range m.n {
		keys = append(keys, m.key(i))
	}
	began := time.Now()
	probe, err := c.Do(append([]string{"CASCADE.PROBE", "redis/0"}, keys...)...)
	probed := time.Since(began)
	if err != nil || probed > lookupBound+scheduling {
		t.Errorf("a probe took %v: %v", probed, err)
	}
	for _, k := range keys {
		c.Send("GET", k)
	}
	if err := c.Flush(); err != nil {
		t.Error(err)
		return
	}
	found := 0
	for i := range keys {
		reply, err := c.Receive()
		switch {
		case err != nil:
			t.Error(err)
			return
		case reply.Null():
		case string(reply.Str) != string(m.value(i)):
			t.Errorf("%s has %d wrong bytes", keys[i], len(reply.Str))
		default:
			found++
		}
	}
	if got := time.Since(began) - probed; got > getBound+scheduling {
		t.Errorf("gets of %d blocks of the other side took %v: a silent rank costs its deadline once, not for every block", m.n, got)
	}
	t.Logf("a request of %d blocks of the other side, a third into the cut: probe %v, which found %d; gets %v, which found %d",
		m.n, probed.Round(time.Millisecond), probe.Field("hits").Int, (time.Since(began) - probed).Round(time.Millisecond), found)
}

// converge waits until every rank finds the newest version of every value.
func converge(t *testing.T, writers []*writer) (blocks int) {
	t.Helper()
	for _, w := range writers {
		for _, of := range writers {
			for i, newest := range of.newest {
				until(t, fmt.Sprintf("version %d of %s on rank %d", newest, netKey(of.rank, i), w.rank), func() bool {
					return w.read(t, of, i) == newest || t.Failed()
				})
			}
		}
		blocks += len(w.newest)
	}
	return blocks
}

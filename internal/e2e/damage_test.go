package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/resp"
)

// damageVariable sets how many faults TestDamageUnderLoad makes. The default
// keeps an ordinary run short.
const damageVariable = "CASCADE_E2E_FAULTS"

const defaultFaults = 9

// TestDamageUnderLoad kills, stops and damages the ranks of a job, one at a time,
// while clients of every rank read and write. A read returns bytes that were
// stored under its key, or nothing.
func TestDamageUnderLoad(t *testing.T) {
	long(t)
	faults := defaultFaults
	if v := os.Getenv(damageVariable); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s: %v", damageVariable, err)
		}
		faults = n
	}
	j := newJob(t, "8MiB", true, "--lustre-segment-bytes", "1MiB", "--clean-above", "0.01")
	gossip := []string{freePort(t), freePort(t), freePort(t)} // fixed: each rank finds the others again
	again := func(i int) { j.add(i, "--peers-gossip", gossip[i], "--peers-seeds", strings.Join(gossip, ",")) }
	for i := range gossip {
		again(i)
	}
	j.agree(len(gossip))
	load := newDamageLoad(j)
	load.start(t)
	dead := []func(*testing.T, *job, int) string{undamaged, flipArena, flipSuperblock, truncateArena, flipIndex, flipSegment, truncateSegment}
	kills, stops := 0, 0
	for i := range faults {
		victim := rand.IntN(len(j.ranks))
		time.Sleep(time.Duration(300+rand.IntN(500)) * time.Millisecond)
		if i%4 == 3 {
			stops++
			stopAndContinue(t, j.ranks[victim], time.Duration(500+rand.IntN(2500))*time.Millisecond)
			continue
		}
		kills++
		j.ranks[victim].kill()
		done := dead[(kills-1)%len(dead)](t, j, victim)
		began := time.Now()
		again(victim)
		t.Logf("fault %d: kill -9 of rank %d, %s; serves again after %v", i, victim, done, time.Since(began).Round(time.Millisecond))
		if t.Failed() {
			break
		}
	}
	load.end()
	c := &load.counts
	t.Logf("%d kills, %d stops: %d puts acknowledged, %d not; %d gets found their bytes, %d found nothing, %d failed with their rank; %d wrong",
		kills, stops, c.puts.Load(), c.lostPuts.Load(), c.hits.Load(), c.misses.Load(), c.failed.Load(), c.wrong.Load())
	if c.hits.Load() == 0 || c.puts.Load() == 0 {
		t.Error("nothing was read or written")
	}
	j.agree(3)
}

// damageLoad is a client of each rank that goes on when its rank does not.
type damageLoad struct {
	sockets []string
	newest  [][]atomic.Int64 // versions that were sent, by rank and key
	stop    chan struct{}
	running sync.WaitGroup
	counts  struct{ puts, lostPuts, hits, misses, failed, wrong atomic.Int64 }
}

const damageKeys = 400

func newDamageLoad(j *job) *damageLoad {
	l := &damageLoad{stop: make(chan struct{})}
	for _, r := range j.ranks {
		l.sockets = append(l.sockets, r.socket)
		l.newest = append(l.newest, make([]atomic.Int64, damageKeys))
	}
	return l
}

func (l *damageLoad) start(t *testing.T) {
	for i := range l.sockets {
		l.running.Go(func() { l.client(t, i) })
	}
	t.Cleanup(l.end)
}

// end stops the clients; a second call does nothing.
func (l *damageLoad) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.running.Wait()
}

// client writes keys of its own and reads everybody's, until the end.
func (l *damageLoad) client(t *testing.T, i int) {
	var c *resp.Client
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for {
		select {
		case <-l.stop:
			return
		case <-time.After(time.Duration(rand.IntN(2000)) * time.Microsecond):
		}
		if c == nil {
			var err error
			if c, err = resp.Dial("unix", l.sockets[i], patience); err != nil {
				c = nil
				continue
			}
		}
		if !l.command(t, c, i) {
			c.Close()
			c = nil
		}
	}
}

// command does one; false when the connection is of no use any more.
func (l *damageLoad) command(t *testing.T, c *resp.Client, i int) bool {
	if k := rand.IntN(damageKeys); rand.IntN(3) == 0 {
		version := int(l.newest[i][k].Add(1))
		err := c.Set(netKey(i, k), netValue(i, k, version))
		if err == nil {
			l.counts.puts.Add(1)
			return true
		}
		l.counts.lostPuts.Add(1)
		return errors.Is(err, resp.ErrServer)
	}
	of, k := rand.IntN(len(l.newest)), rand.IntN(damageKeys)
	room := make([]byte, netValueBytes+64)
	n, err := c.Get(netKey(of, k), room)
	switch {
	case errors.Is(err, resp.ErrNull):
		l.counts.misses.Add(1)
	case err != nil:
		l.counts.failed.Add(1)
		return errors.Is(err, resp.ErrServer)
	case versionIn(room[:n], of, k, int(l.newest[of][k].Load())) == 0:
		l.counts.wrong.Add(1)
		t.Errorf("rank %d: %s has %d wrong bytes", i, netKey(of, k), n)
	default:
		l.counts.hits.Add(1)
	}
	return true
}

func stopAndContinue(t *testing.T, r *rank, d time.Duration) {
	t.Helper()
	r.signal(t, syscall.SIGSTOP)
	time.Sleep(d)
	r.signal(t, syscall.SIGCONT)
	t.Logf("SIGSTOP of %s for %v", filepath.Base(filepath.Dir(r.socket)), d)
}

func undamaged(*testing.T, *job, int) string { return "nothing damaged" }

// flip inverts some bits of bytes [from, to) of a file; to 0: to its end.
func flip(t *testing.T, path string, flips int, from, to int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() <= from {
		return
	} else if to == 0 || to > st.Size() {
		to = st.Size()
	}
	b := make([]byte, 1)
	for range flips {
		at := from + rand.Int64N(to-from)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Error(err)
			return
		}
		b[0] ^= byte(1 << rand.IntN(8))
		if _, err := f.WriteAt(b, at); err != nil {
			t.Error(err)
			return
		}
	}
}

func flipArena(t *testing.T, j *job, i int) string {
	flip(t, j.places[i].arena, 200, 0, 0)
	return "200 bits of its arena flipped"
}

func flipSuperblock(t *testing.T, j *job, i int) string {
	flip(t, j.places[i].arena, 40, 0, 4096)
	return "40 bits of the first page of its arena flipped"
}

func truncateArena(t *testing.T, j *job, i int) string {
	st, err := os.Stat(j.places[i].arena)
	if err == nil {
		size := rand.Int64N(st.Size())
		err = os.Truncate(j.places[i].arena, size)
		if err == nil {
			return fmt.Sprintf("its arena cut to %d of %d bytes", size, st.Size())
		}
	}
	t.Error(err)
	return ""
}

func flipIndex(t *testing.T, j *job, i int) string {
	n := 0
	for _, path := range filesBelow(t, filepath.Join(j.places[i].dir, "index"), "*") {
		flip(t, path, 10, 0, 0)
		n++
	}
	return fmt.Sprintf("10 bits flipped in each of %d files of its index", n)
}

func flipSegment(t *testing.T, j *job, i int) string {
	segments := filesBelow(t, j.lustre, "*.bin")
	for _, path := range segments {
		flip(t, path, 10, 0, 0)
	}
	return fmt.Sprintf("10 bits flipped in each of %d segments of all ranks", len(segments))
}

func truncateSegment(t *testing.T, j *job, i int) string {
	segments := filesBelow(t, j.lustre, fmt.Sprintf("agg_rank%03d_*.bin", i))
	if len(segments) == 0 {
		return "it has no segment to cut"
	}
	path := segments[rand.IntN(len(segments))]
	st, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, st.Size()/2)
	}
	if err != nil {
		t.Error(err)
	}
	return "one of its segments cut to half"
}

// filesBelow lists the files whose names match. A file that goes meanwhile is
// left out.
func filesBelow(t *testing.T, dir, pattern string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.Type().IsRegular() {
			if ok, _ := filepath.Match(pattern, e.Name()); ok {
				paths = append(paths, path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return paths
}

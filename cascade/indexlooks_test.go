package cascade

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// looker is a client that looks up and reads by the shared index, and notes that in its ring.
type looker struct {
	*shmindex.Reader
	r              *rig
	touches        *Touches
	mem            []byte
	touched, words uint64
}

func (r *rig) looker() *looker {
	r.t.Helper()
	l := &looker{r: r, Reader: r.reader()}
	var err error
	if l.touches, err = r.index.Touches(traffic.Sender{Engine: 1, Conn: 2}); err != nil {
		r.t.Fatal(err)
	}
	fd, size := l.touches.File()
	if l.mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = unix.Munmap(l.mem) })
	count := l.mem[128+8*16384:]
	copy(count[28:], "ns")
	binary.LittleEndian.PutUint32(count[24:], 2)
	return l
}

// write adds a note to the ring.
func (l *looker) write(n *shmindex.Note) {
	for _, w := range shmindex.AppendNote(nil, n) {
		binary.LittleEndian.PutUint64(l.mem[128+8*16384+256*16+8*(l.words%32768):], w)
		l.words++
	}
	binary.LittleEndian.PutUint64(l.mem[80:], l.words)
}

// note looks keys up, and returns how many leading ones are there.
func (l *looker) note(kind shmindex.NoteKind, keys ...string) (hits int) {
	l.r.t.Helper()
	n := shmindex.Note{Kind: kind, After: uint32(l.touched), At: l.r.clock().UnixNano(), Table: 1}
	if !l.Alive() || !l.Final() {
		l.r.t.Fatal("the table is out of use")
	}
	for i, key := range keys {
		_, place, is := l.Lookup(shmindex.FingerprintOf("ns", key))
		if is = is && (kind != shmindex.Probed || hits == i); is {
			n.Keys = append(n.Keys, shmindex.NotedKey{Here: true, Place: place})
		} else {
			n.Keys = append(n.Keys, shmindex.NotedKey{Print: block.Fingerprint("ns", key)})
		}
		if is && hits == i {
			hits++
		}
	}
	l.write(&n)
	return hits
}

// read reads keys that are there.
func (l *looker) read(keys ...string) {
	for _, key := range keys {
		_, place, ok := l.Lookup(shmindex.FingerprintOf("ns", key))
		if !ok {
			l.r.t.Fatalf("%s is not there", key)
		}
		binary.LittleEndian.PutUint64(l.mem[128+8*(l.touched%16384):], shmindex.Touch(1, place))
		l.touched++
	}
	binary.LittleEndian.PutUint64(l.mem[64:], l.touched)
}

// every is a policy that keeps all requests, in order.
type every struct {
	policy.Policy
	told []string
}

func (p *every) Access(r *policy.Request) {
	one := fmt.Sprint(r.Hits, ":")
	for _, ref := range r.Chain {
		one += fmt.Sprintf(" %x/%v", ref.Fingerprint, ref.Node == policy.NoNode)
	}
	p.told = append(p.told, one)
	p.Policy.Access(r)
}

// An engine that looks up by the shared index alone has the policy see the requests, and choose the victims, that it
// would see and choose if the rank were asked; and who records the traffic sees the look-ups where they were.
func TestLookUpsByTheIndexAreRequests(t *testing.T) {
	type engine func(r *rig) (look func(keys []string) int, read func(keys []string))
	get := func(r *rig) func(keys []string) {
		return func(keys []string) {
			views, err := r.GetBatch(r.t.Context(), "ns", keys)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, v := range views {
				v.Release()
			}
		}
	}
	probes := func(r *rig) (func(keys []string) int, func(keys []string)) {
		return func(keys []string) int { return r.Probe(r.t.Context(), "ns", keys).Hits }, get(r)
	}
	contains := func(r *rig) (func(keys []string) int, func(keys []string)) {
		return func(keys []string) (hits int) {
			var words [][]byte
			for _, key := range keys {
				words = append(words, []byte(key))
			}
			found := r.ContainsBatch(r.t.Context(), "ns", words)
			return slices.Index(append(found, false), false)
		}, get(r)
	}
	byIndex := func(kind shmindex.NoteKind, copies bool) engine {
		return func(r *rig) (func(keys []string) int, func(keys []string)) {
			l := r.looker()
			read := get(r)
			if copies {
				read = func(keys []string) { l.read(keys...) }
			}
			return func(keys []string) int { return l.note(kind, keys...) }, read
		}
	}
	run := func(t *testing.T, e engine) (told []string, hits int, kinds []traffic.Kind) {
		p := &every{}
		r := newRig(t, 8<<20, false, func(o *Options) {
			o.Capacity = 40 * 10_000
			o.NewPolicy = func(name string, capacity int64) (_ policy.Policy, err error) {
				p.Policy, err = policy.New(name, capacity)
				return p, err
			}
		})
		next, _, _ := Traffic(r.Store).Since(0, 0)
		look, read := e(r)
		rng := rand.New(rand.NewPCG(1, 2))
		turns := map[int]int{}
		for range 150 {
			c := rng.IntN(6)
			turns[c]++
			keys := []string{"shared"}
			for i := range min(turns[c], 12) {
				keys = append(keys, fmt.Sprint(c, ".", i))
			}
			n := look(keys)
			hits += n
			read(keys[:n])
			for i := n; i < len(keys); i++ {
				e := Entry{Namespace: "ns", Key: keys[i]}
				if i > 0 {
					e.Parent = keys[i-1]
				}
				r.put(e, data(block.Fingerprint("ns", keys[i]), 10_000))
				NoteTraffic(r.Store, traffic.Command{Kind: traffic.Put, Namespace: "ns", Keys: []uint64{1}}, []byte(keys[i]))
			}
			r.Sweep() // what the ring has: a hit that no put follows would be a request of a later time
			r.nowMu.Lock()
			r.now = r.now.Add(100 * time.Millisecond)
			r.nowMu.Unlock()
		}
		_, _, commands := Traffic(r.Store).Since(next, 1<<16)
		for _, c := range commands {
			if c.Kind != traffic.Got {
				kinds = append(kinds, c.Kind)
			}
		}
		if st := r.Stats(); st.Hits != uint64(hits) {
			t.Errorf("%d hits, want %d", st.Hits, hits)
		}
		return p.told, hits, kinds
	}
	for name, c := range map[string]struct{ asks, looks engine }{
		"PROBE, gets":      {probes, byIndex(shmindex.Probed, false)},
		"PROBE, copies":    {probes, byIndex(shmindex.Probed, true)},
		"CONTAINS, gets":   {contains, byIndex(shmindex.Contained, false)},
		"CONTAINS, copies": {contains, byIndex(shmindex.Contained, true)},
	} {
		t.Run(name, func(t *testing.T) {
			want, all, _ := run(t, c.asks)
			got, hits, kinds := run(t, c.looks)
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || got[i] != want[i] {
					t.Fatalf("of %d and %d requests the %dth is\n%q, want\n%q", len(got), len(want), i, got[min(i, len(got)):min(i+2, len(got))], want[min(i, len(want)):min(i+2, len(want))])
				}
			}
			if hits != all || hits == 0 {
				t.Errorf("%d hits, want %d", hits, all)
			}
			looked := 0
			for i, kind := range kinds {
				if kind == traffic.Looked {
					looked++
				} else if i == 0 {
					t.Error("a put is recorded before the look-up of its keys")
				}
			}
			if looked != 150 {
				t.Errorf("%d look-ups are recorded, want 150", looked)
			}
		})
	}
}

// A read that finds nothing is a request, as a get is, or part of the look-up before it.
func TestReadsThatFindNothingAreRequests(t *testing.T) {
	p := &every{}
	r := newRig(t, 8<<20, false, func(o *Options) {
		o.NewPolicy = func(name string, capacity int64) (_ policy.Policy, err error) {
			p.Policy, err = policy.New(name, capacity)
			return p, err
		}
	})
	l := r.looker()
	missing := func(keys ...string) string {
		one := fmt.Sprint(len(keys), ":")
		for _, key := range keys {
			one += fmt.Sprintf(" %x/true", block.Fingerprint("ns", key))
		}
		return one
	}
	l.note(shmindex.ReadMissed, "a")
	l.note(shmindex.Contained, "b", "c")
	l.note(shmindex.ReadMissed, "c")
	l.note(shmindex.ReadMissed, "b")
	l.note(shmindex.ReadMissed, "b")
	r.Sweep()
	if want := []string{missing("a"), missing("b", "c"), missing("b")}; !slices.Equal(p.told, want) {
		t.Errorf("%q, want %q", p.told, want)
	}
}

// What is computed after a look-up by the index counts from when it was looked up.
func TestThePrefillRateIsLearnedByTheIndex(t *testing.T) {
	r := newRig(t, 8<<20, false)
	l := r.looker()
	for chain := range 4 {
		keys := make([]string, 5)
		for i := range keys {
			keys[i] = fmt.Sprint(chain, ".", i)
		}
		l.note(shmindex.Probed, keys...)
		r.nowMu.Lock()
		r.now = r.now.Add(50 * time.Millisecond)
		r.nowMu.Unlock()
		for i, key := range keys {
			r.put(ns(key), data(uint64(100*chain+i), 1000))
		}
	}
	if got := r.state.Requests.Prefills.PerBlock("ns"); got != 10*time.Millisecond {
		t.Errorf("a block takes %v, want 10ms", got)
	}
}

// TestALookUpOfLongAgo: what a client says of the year 1677 teaches nothing of how fast engines compute.
func TestALookUpOfLongAgo(t *testing.T) {
	for _, at := range []int64{math.MinInt64, 0} {
		r := newRig(t, 8<<20, false)
		l := r.looker()
		for chain := range 10 {
			n := shmindex.Note{Kind: shmindex.Probed, After: uint32(l.touched), At: at, Table: 1}
			for i := range 5 {
				n.Keys = append(n.Keys, shmindex.NotedKey{Print: block.Fingerprint("ns", fmt.Sprint(chain, ".", i))})
			}
			l.write(&n)
			r.Sweep()
			for i := range 5 {
				r.put(ns(fmt.Sprint(chain, ".", i)), data(uint64(100*chain+i), 1000))
			}
		}
		if got := r.state.Requests.Prefills.PerBlock("ns"); got != 0 {
			t.Errorf("at %d: a block takes %v", at, got)
		}
	}
}

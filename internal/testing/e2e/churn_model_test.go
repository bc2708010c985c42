package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
)

// churnPool has the contents that the clients of a churn put. Contents are numbered;
// each is a head, which differs, and a stretch of noise that all share.
type churnPool struct {
	noise []byte
	sizes []int
	ids   []block.ID
	of    map[block.ID]int
}

const (
	churnLeast = 4 << 10
	churnMost  = 64 << 10
)

func newChurnPool(seed uint64, contents int) *churnPool {
	p := &churnPool{noise: noise.Bytes(seed, 1<<20), of: map[block.ID]int{}}
	rng := rand.New(rand.NewPCG(seed, 1))
	for c := range contents {
		p.sizes = append(p.sizes, churnLeast+rng.IntN((churnMost-churnLeast)/8+1)*8)
		id := block.Sum(block.Bits128, p.value(c, nil))
		p.ids = append(p.ids, id)
		p.of[id] = c
	}
	return p
}

// value is content c, in dst if that has room.
func (p *churnPool) value(c int, dst []byte) []byte {
	at := c * 4099 % (len(p.noise) - churnMost)
	dst = binary.LittleEndian.AppendUint64(dst[:0], uint64(c))
	return append(dst, p.noise[at:at+p.sizes[c]-8]...)
}

// content finds out which content some bytes are; none for bytes of which nobody put
// all.
func (p *churnPool) content(got []byte) int {
	if len(got) < 8 {
		return none
	}
	c := binary.LittleEndian.Uint64(got)
	if c >= uint64(len(p.sizes)) || !bytes.Equal(got, p.value(int(c), make([]byte, 0, churnMost))) {
		return none
	}
	return int(c)
}

const none = -1

// change is a command on a key: a put, or what ends the key.
type change struct {
	content  int // none: the key ends
	rank     int // that took it
	from, to time.Time
	ends     time.Time // not before; of an expiry
	durable  bool      // a drain that began after it has ended
}

func (w *change) answered() bool { return !w.to.IsZero() }

// churnKey is what is known of one key. Commands on it come one after another, by
// whatever clients; gets come at any time.
type churnKey struct {
	ns, name string
	parent   string

	writing sync.Mutex // held for a command

	mu      sync.Mutex
	changes []change
}

// churnModel is one store: what a job of ranks must look like.
type churnModel struct {
	pool   *churnPool
	spaces []*churnSpace
	keys   []*churnKey
	calm   calm
}

// churnSpace is a namespace. Clearing it excludes other commands.
type churnSpace struct {
	name string
	keys []*churnKey
	mu   sync.RWMutex
}

func newChurnModel(seed uint64, spaces, keysEach, contents int) *churnModel {
	m := &churnModel{pool: newChurnPool(seed, contents)}
	for i := range spaces {
		s := &churnSpace{name: fmt.Sprintf("churn/%d", i)}
		if i == 0 {
			s.name = "redis/0"
		}
		for k := range keysEach {
			key := &churnKey{ns: s.name, name: fmt.Sprintf("n%d/%d", i, k)}
			if i%2 == 1 && k%8 > 0 {
				key.parent = s.keys[k-1].name
			}
			s.keys = append(s.keys, key)
		}
		m.keys = append(m.keys, s.keys...)
		m.spaces = append(m.spaces, s)
	}
	return m
}

// settles is how long a change may take to be known wherever it matters: a probe's 2 s,
// a read's 3 s, and the second in which what ended is recorded in segments; and as much
// again, for the machine is busy.
const settles = 10 * time.Second

// calm is when all ranks were there, and knew each other.
type calm struct {
	mu     sync.Mutex
	storms []storm
}

type storm struct {
	rank     int
	from, to time.Time // to is zero while it lasts
}

// begin notes that a rank is about to be lost.
func (c *calm) begin(rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storms = append(c.storms, storm{rank: rank, from: time.Now()})
}

// end notes that all ranks are there.
func (c *calm) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storms[len(c.storms)-1].to = time.Now()
}

// between reports whether no rank was lost, or absent, from one time to another.
func (c *calm) between(from, to time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.storms) - 1; i >= 0; i-- {
		s := c.storms[i]
		if s.from.Before(to) && (s.to.IsZero() || s.to.After(from)) {
			return false
		}
		if !s.to.IsZero() && s.to.Before(from) {
			break
		}
	}
	return true
}

// firm reports whether nothing older than a change may be seen at a time, nor later.
// While a rank is absent it does not learn of changes, and may come back with what it
// had: docs/protocol.md, "A DEL that a dead rank did not receive". So a change counts
// that was answered in calm, and had time to spread before that ended.
func (m *churnModel) firm(w *change, at time.Time) bool {
	spread := w.to.Add(settles)
	return w.answered() && at.After(spread) && at.After(w.ends.Add(settles)) && m.calm.between(w.from, spread)
}

// floor is the place of the last change that is firm at a time, -1 if none is. An expiry is
// none if another one may have put it off.
func (m *churnModel) floor(k *churnKey, at time.Time) int {
	putOff := time.Time{} // since when, by the expiries that come next
	for i := len(k.changes) - 1; i >= 0; i-- {
		w := &k.changes[i]
		if m.firm(w, at) && (w.ends.IsZero() || putOff.IsZero() || putOff.After(w.ends)) {
			return i
		}
		if putOff = w.from; w.ends.IsZero() {
			putOff = time.Time{}
		}
	}
	return -1
}

// judgement is what a read turned out to be.
type judgement int

const (
	right judgement = iota
	missed
	lostDurable // missed, though a drain made it durable
	stale       // an older value than may be seen
	wrong       // bytes that nobody put under the key
)

// judge says what a read is that began at a time and found a content, or nothing.
func (m *churnModel) judge(k *churnKey, began time.Time, content int, found bool) judgement {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.changes)
	if !found {
		if n > 0 && k.changes[n-1].durable && k.changes[n-1].content != none {
			return lostDurable
		}
		return missed
	}
	verdict := wrong
	if content == none {
		return wrong
	}
	floor := m.floor(k, began)
	for i := range k.changes {
		if k.changes[i].content != content {
			continue
		}
		if i >= floor {
			return right
		}
		verdict = stale
	}
	return verdict
}

// begin notes a command that is about to be sent, and returns its place. The key's
// writing is held.
func (k *churnKey) begin(content, rank int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes = append(k.changes, change{content: content, rank: rank, from: time.Now()})
	return len(k.changes) - 1
}

// answered notes that a command was carried out, and when the key is to end.
func (k *churnKey) answered(i int, ends time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes[i].to, k.changes[i].ends = time.Now(), ends
}

// drained marks what a rank was given between two times as durable.
func (m *churnModel) drained(rank int, since, before time.Time) (n int) {
	for _, k := range m.keys {
		k.mu.Lock()
		if i := len(k.changes) - 1; i >= 0 {
			w := &k.changes[i]
			if w.content != none && w.rank == rank && w.answered() && w.from.After(since) && w.to.Before(before) && !w.durable {
				w.durable = true
				n++
			}
		}
		k.mu.Unlock()
	}
	return n
}

// forgetDrained takes all such marks back: from here on anything may be given up.
func (m *churnModel) forgetDrained() {
	for _, k := range m.keys {
		k.mu.Lock()
		for i := range k.changes {
			k.changes[i].durable = false
		}
		k.mu.Unlock()
	}
}

// durable are the keys whose value must be there.
func (m *churnModel) durable() (all []*churnKey) {
	for _, k := range m.keys {
		k.mu.Lock()
		if n := len(k.changes); n > 0 && k.changes[n-1].durable && k.changes[n-1].content != none {
			all = append(all, k)
		}
		k.mu.Unlock()
	}
	return all
}

// history is what was done to a key, the last few commands.
func (m *churnModel) history(k *churnKey) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	s := ""
	floor := m.floor(k, now)
	for i := max(0, min(floor, len(k.changes)-8)); i < len(k.changes); i++ {
		w := &k.changes[i]
		s += fmt.Sprintf("\n  %v ago on rank %d: content %d", now.Sub(w.from).Round(time.Millisecond), w.rank, w.content)
		if w.content == none {
			s += " (ends)"
		}
		if !w.ends.IsZero() {
			s += fmt.Sprintf(" at %v ago", now.Sub(w.ends).Round(time.Millisecond))
		}
		if !w.answered() {
			s += ", not answered"
		} else {
			s += fmt.Sprintf(", took %v", w.to.Sub(w.from).Round(time.Millisecond))
		}
		if w.durable {
			s += ", durable"
		}
		if i == floor {
			s += ", firm"
		}
	}
	m.calm.mu.Lock()
	defer m.calm.mu.Unlock()
	for _, c := range m.calm.storms[max(0, len(m.calm.storms)-8):] {
		s += fmt.Sprintf("\n  rank %d absent from %v ago to %v ago", c.rank, now.Sub(c.from).Round(time.Millisecond), now.Sub(c.to).Round(time.Millisecond))
	}
	return s
}

// lastAfter reports whether the key was changed after a time.
func (k *churnKey) lastAfter(t time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.changes)
	return n > 0 && k.changes[n-1].from.After(t)
}

// settled reports whether the last change of a key is one that nothing can undo.
func (m *churnModel) settled(k *churnKey) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.changes)
	return n > 0 && (k.changes[n-1].durable || m.floor(k, time.Now()) == n-1)
}

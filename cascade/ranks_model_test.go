package cascade

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/tiers"
)

// versioned is the content of a key in a version: every 16 bytes tell both, so
// that no part of another block goes unnoticed.
func versioned(key int, version uint64) []byte {
	p := make([]byte, 16*(3000+(key*37+int(version)*101)%12000))
	for i := 0; i < len(p); i += 16 {
		binary.LittleEndian.PutUint64(p[i:], uint64(key)<<32|uint64(i))
		binary.LittleEndian.PutUint64(p[i+8:], version)
	}
	return p
}

// versionOf checks that p is one version of key, whole, and returns which.
func versionOf(key int, p []byte) (uint64, error) {
	if len(p) < 16 {
		return 0, fmt.Errorf("%d bytes", len(p))
	}
	version := binary.LittleEndian.Uint64(p[8:])
	if string(versioned(key, version)) != string(p) {
		return 0, fmt.Errorf("%d bytes are not key %d in version %d", len(p), key, version)
	}
	return version, nil
}

// model runs random operations on several ranks at once and checks every byte.
type model struct {
	*job
	keys   int
	next   []atomic.Uint64 // versions given out
	hits   atomic.Int64
	misses atomic.Int64
}

func (m *model) put(rank, key int) {
	version := m.next[key].Add(1)
	_, err := m.ranks[rank].Put(m.t.Context(), ns(fmt.Sprint(key)), versioned(key, version), nil)
	if err != nil && !errors.Is(err, ErrNoRoom) {
		m.t.Errorf("put: %v", err)
	}
}

// end has a name end in a moment.
func (m *model) end(rank, key int) {
	m.ranks[rank].Expire(m.t.Context(), "ns", fmt.Sprint(key), time.Now().Add(time.Millisecond))
	m.ranks[rank].Sweep()
}

func (m *model) get(rank, key int) (version uint64) {
	v, err := m.ranks[rank].Get(m.t.Context(), "ns", fmt.Sprint(key))
	if errors.Is(err, ErrMiss) {
		m.misses.Add(1)
		return 0
	} else if err != nil {
		m.t.Errorf("get: %v", err)
		return 0
	}
	defer v.Release()
	m.hits.Add(1)
	version, err = versionOf(key, v.Bytes())
	if err != nil || version == 0 || version > m.next[key].Load() {
		m.t.Errorf("rank %d, from %s: version %d, %v", rank, v.Tier(), version, err)
	}
	return version
}

// churn runs workers on every rank.
func (m *model) churn(steps int, ranks ...int) {
	var wait sync.WaitGroup
	for _, rank := range ranks {
		for worker := range 3 {
			wait.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(rank), uint64(worker)))
				for range steps {
					key := rng.IntN(m.keys)
					switch rng.IntN(10) {
					case 0, 1, 2:
						m.put(rank, key)
					case 3:
						m.ranks[rank].Probe(m.t.Context(), "ns", []string{fmt.Sprint(key), fmt.Sprint(key + 1)})
					case 4:
						switch rng.IntN(8) {
						case 0:
							m.ranks[rank].Delete(m.t.Context(), "ns", fmt.Sprint(key))
						case 1:
							m.end(rank, key)
						}
					default:
						m.get(rank, key)
					}
				}
			})
		}
	}
	wait.Wait()
}

// TestRandomOperationsOnManyRanks: with arenas far too small, overwrites,
// deletions and in the end a death, every get is right or a miss.
func TestRandomOperationsOnManyRanks(t *testing.T) {
	randomOperations(t, &model{job: newJob(t, 4, 4<<20), keys: 200})
}

// TestRandomOperationsOnManyRanksWithDisks: likewise where two of them have one below an arena far too small.
func TestRandomOperationsOnManyRanksWithDisks(t *testing.T) {
	j := &job{t: t, below: map[fabric.Rank]tiers.Memory{0: disk{testdevice.New(4 << 20)}, 2: disk{testdevice.New(8 << 20)}}}
	m := &model{job: j.open(4, 4<<20), keys: 300}
	randomOperations(t, m)
	for _, rank := range []int{0, 2} {
		if st := m.ranks[rank].Stats(); st.Tiers[1].Hits == 0 {
			t.Errorf("rank %d has read nothing of its disk", rank)
		}
	}
}

func randomOperations(t *testing.T, m *model) {
	m.next = make([]atomic.Uint64, m.keys)
	m.churn(80, 0, 1, 2, 3)
	if m.hits.Load() == 0 || m.misses.Load() == 0 {
		t.Errorf("%d hits, %d misses: nothing is tested", m.hits.Load(), m.misses.Load())
	}
	// After a last put of each key and some quiet, it is that or nothing; and nothing if it
	// ended.
	for key := range m.keys {
		if m.put(key%4, key); key%3 == 0 {
			m.end(key%4, key)
		}
	}
	m.late.Store(int64(time.Second))
	for _, r := range m.ranks {
		r.Sweep()
	}
	m.settle()
	for _, r := range m.ranks {
		r.state.Mu.Lock()
		r.load.SweepLandedLocked(r.state.Now(), true)
		r.state.Mu.Unlock()
	}
	m.settle()
	for key := range m.keys {
		for rank := range m.ranks {
			if v := m.get(rank, key); v != 0 && (v != m.next[key].Load() || key%3 == 0) {
				t.Errorf("rank %d serves version %d of key %d, the last is %d, ended: %v", rank, v, key, m.next[key].Load(), key%3 == 0)
			}
		}
	}
	evicted := uint64(0)
	for _, r := range m.ranks {
		evicted += r.Stats().Tiers[0].Evicted
		if c := r.Stats().Corrupt; c > 0 {
			t.Errorf("rank %d: %d corrupt", r.node.Self(), c)
		}
	}
	if evicted == 0 {
		t.Error("nothing was evicted")
	}
	m.die(fabric.Rank(3))
	m.churn(15, 0, 1, 2)
}

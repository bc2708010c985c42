package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/resp"
)

// content is version v of a key. Every fifth version has the bytes of another
// key's, so that deduplication has work.
func content(key string, v uint64, most int) []byte {
	seed := fnv.New64a()
	if v%5 == 0 {
		key = "shared"
		v %= 50
	}
	fmt.Fprintf(seed, "%s/%d", key, v)
	r := rand.NewPCG(seed.Sum64(), v)
	size := 24 + int(r.Uint64()%uint64(most))
	if v%3 == 0 {
		size = 24 + size/64
	}
	p := make([]byte, size/8*8)
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p
}

// written is what a client knows of one key.
type written struct {
	acked uint64 // last acknowledged version; 0: none, or a deletion
	sent  uint64 // version that was sent and not acknowledged; 0: none
	gone  bool   // the last acknowledged command was DEL
	going bool   // a DEL was sent and not acknowledged
}

// journal is the clients' side of a storm. Each key belongs to one client.
type journal struct {
	most    int // bytes of the largest value
	keys    []string
	known   map[string]*written
	version uint64
	mu      sync.Mutex   // of version
	acks    atomic.Int64 // acknowledged commands
}

func newJournal(clients, keysEach, most int) *journal {
	j := &journal{most: most, known: map[string]*written{}}
	for c := range clients {
		for k := range keysEach {
			key := fmt.Sprintf("c%d-k%d", c, k)
			j.keys = append(j.keys, key)
			j.known[key] = &written{}
		}
	}
	return j
}

func (j *journal) next() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.version++
	return j.version
}

// storm writes through clients until their connections end. It returns when
// all have, with the number of acknowledged commands.
func (j *journal) storm(t *testing.T, socket string, clients int) (acks int) {
	t.Helper()
	var all sync.WaitGroup
	before := j.acks.Load()
	for c := range clients {
		mine := j.keys[c*len(j.keys)/clients : (c+1)*len(j.keys)/clients]
		all.Go(func() {
			client, err := resp.Dial("unix", socket, patience)
			if err != nil {
				return // killed before the storm reached it
			}
			defer client.Close()
			for j.write(t, client, mine[rand.IntN(len(mine))]) {
				j.acks.Add(1)
				if rand.IntN(8) == 0 { // a moment of quiet, in which ids get completed
					time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
				}
			}
		})
	}
	all.Wait()
	return int(j.acks.Load() - before)
}

// after does something to a rank in the middle of a storm: when n more commands
// have been acknowledged.
func (j *journal) after(n int64, do func()) {
	n += j.acks.Load()
	go func() {
		for end := time.Now().Add(patience); j.acks.Load() < n && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		do()
	}()
}

// write does one command on a key; false when the connection has ended.
func (j *journal) write(t *testing.T, c *resp.Client, key string) bool {
	w := j.known[key]
	if rand.IntN(16) == 0 {
		w.going = true
		if _, err := c.Do("DEL", key); err != nil {
			return false
		}
		*w = written{gone: true}
		return true
	}
	v := j.next()
	w.sent = v
	err := c.Set(key, content(key, v, j.most))
	switch {
	case err == nil:
		*w = written{acked: v}
		return true
	case errors.Is(err, resp.ErrServer):
		t.Errorf("SET %s: %v", key, err)
		w.sent = 0
		return true
	}
	return false
}

// verdict counts what a check found.
type verdict struct {
	acked, present, absent int
	cut                    int // absent ones whose replacement was on its way when the rank died
	inFlight               int // commands that were not acknowledged and took effect
	undone                 int // acknowledged deletions whose key is back with an older version
}

func (v *verdict) add(w verdict) {
	v.acked, v.present, v.absent = v.acked+w.acked, v.present+w.present, v.absent+w.absent
	v.cut, v.inFlight, v.undone = v.cut+w.cut, v.inFlight+w.inFlight, v.undone+w.undone
}

func (v verdict) String() string {
	return fmt.Sprintf("%d acknowledged, %d of them present, %d absent (%d of these were being replaced), %d unacknowledged took effect, %d deletions undone",
		v.acked, v.present, v.absent, v.cut, v.inFlight, v.undone)
}

// check reads every key and compares it with what may be there: the last
// acknowledged version, one that was on its way, or nothing. What it finds is
// the truth from then on.
func (j *journal) check(t *testing.T, c *resp.Client) (v verdict) {
	t.Helper()
	room := make([]byte, j.most+64)
	for _, key := range j.keys {
		w := j.known[key]
		n, err := c.Get(key, room)
		if err != nil && !errors.Is(err, resp.ErrNull) {
			t.Fatalf("GET %s: %v", key, err)
		}
		if w.acked > 0 {
			v.acked++
		}
		switch got := room[:n]; {
		case err != nil && w.going:
			v.inFlight++
			*w = written{gone: true}
		case err != nil && w.acked > 0:
			v.absent++
			if w.sent > 0 {
				v.cut++
			}
			*w = written{}
		case err != nil:
			*w = written{gone: w.gone}
		case w.acked > 0 && bytes.Equal(got, content(key, w.acked, j.most)):
			v.present++
			*w = written{acked: w.acked}
		case w.sent > 0 && bytes.Equal(got, content(key, w.sent, j.most)):
			v.inFlight++
			if w.acked > 0 {
				v.present++
			}
			*w = written{acked: w.sent}
		case w.gone && j.versionOf(key, got) > 0:
			v.undone++
			*w = written{acked: j.versionOf(key, got)}
		default:
			t.Errorf("%s has %d wrong bytes, version %d (0: none of its own); known is %+v", key, n, j.versionOf(key, got), *w)
		}
	}
	return v
}

// versionOf finds out which version of a key some bytes are; 0: none.
func (j *journal) versionOf(key string, got []byte) uint64 {
	for v := j.version; v > 0; v-- {
		if bytes.Equal(got, content(key, v, j.most)) {
			return v
		}
	}
	return 0
}

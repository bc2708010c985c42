package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/resp"
	"cascadekv/internal/testing/noise"
)

// nvmeBlocks are blocks of a rank with disks below shm, and what was done with them.
type nvmeBlocks struct {
	rank    *rank
	version []int // of each block's value; -1: it was deleted
	last    []int // version that it ever had
}

func (b *nvmeBlocks) key(i int) string { return fmt.Sprint("block", i) }

func (b *nvmeBlocks) value(i, version int) []byte {
	return noise.Bytes(uint64(1000*version+i), 4096+i*7919%700_000)
}

// change overwrites and deletes some, and returns how many there are.
func (b *nvmeBlocks) change(t *testing.T) (there int) {
	t.Helper()
	c := b.rank.dial(t)
	for i := range b.version {
		switch rand.IntN(6) {
		case 0:
			b.last[i]++
			b.version[i] = b.last[i]
			must(t, c.Set(b.key(i), b.value(i, b.version[i])))
		case 1:
			_, err := c.Do("DEL", b.key(i))
			must(t, err)
			b.version[i] = -1
		}
		if b.version[i] >= 0 {
			there++
		}
	}
	return there
}

// check compares all blocks. Of a rank that was killed the last changes may be missing: what there is then counts.
func (b *nvmeBlocks) check(t *testing.T, when string, killed bool, least int) {
	t.Helper()
	c, found, buf := b.rank.dial(t), 0, make([]byte, 1<<20)
	for i := range b.version {
		n, err := c.Get(b.key(i), buf)
		if errors.Is(err, resp.ErrNull) {
			if killed {
				b.version[i] = -1
			}
			continue
		}
		must(t, err)
		found++
		for v := b.last[i]; killed && v >= 0 && (b.version[i] < 0 || !bytes.Equal(buf[:n], b.value(i, b.version[i]))); v-- {
			b.version[i] = v
		}
		if b.version[i] < 0 {
			t.Errorf("%s: block %d is back", when, i)
		} else if !bytes.Equal(buf[:n], b.value(i, b.version[i])) {
			t.Errorf("%s: block %d has other bytes", when, i)
		}
	}
	if found < least {
		t.Errorf("%s: %d blocks are there, want %d", when, found, least)
	}
}

// TestNVMeLevel: a rank with disks below shm keeps more than shm has, through an upgrade and restarts, and nothing that
// was deleted comes back. After kill -9 it has most of it, as it was at some time.
func TestNVMeLevel(t *testing.T) {
	t.Run("above lustre", func(t *testing.T) { nvmeLevel(t, newPlace(t, "16MiB").withLustre()) })
	t.Run("alone", func(t *testing.T) { nvmeLevel(t, newPlace(t, "16MiB")) })
}

func nvmeLevel(t *testing.T, p place) {
	more := []string{"--nvme-paths", filepath.Join(p.dir, "disk0") + "," + filepath.Join(p.dir, "disk1"), "--nvme-bytes", "128MiB", "--nvme-file-bytes", "64KiB"}
	const blocks = 120 // some 43 MB
	b := nvmeBlocks{start(t, p, more...), make([]int, blocks), make([]int, blocks)}
	c := b.rank.dial(t)
	for i := range blocks {
		must(t, c.Set(b.key(i), b.value(i, 0)))
	}
	b.check(t, "at first", false, blocks)
	if _, out, _ := finish(t, program("cascade"), "status", "--socket", p.socket); !strings.Contains(out, "nvme") {
		t.Errorf("status does not show the level:\n%s", out)
	}
	there := b.change(t)
	b.check(t, "after changes", false, there)
	upgrade(t, b.rank)
	b.check(t, "after an upgrade", false, there)
	for range 3 {
		there = b.change(t)
		b.rank.endsWell(t)
		b.rank = start(t, p, more...)
		b.check(t, "after a restart", false, there)
		there = b.change(t)
		b.rank.kill()
		b.rank = start(t, p, more...)
		b.check(t, "after a kill", true, there/2)
	}
}

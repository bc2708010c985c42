package segment

import (
	"context"
	"os"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// numbered are liveOptions of another rank number.
func numbered(dir string, rank uint32, incarnation uint64, c *nodeClock) Options {
	o := liveOptions(dir, incarnation, c)
	o.Rank = rank
	return o
}

// adoptOrphan has s take over an incarnation, and counts the blocks that it is given.
func adoptOrphan(t *testing.T, s *opened, one tiers.Part) (adopted bool, blocks int) {
	t.Helper()
	adopted, err := s.AdoptOrphan(t.Context(), one, func(f tiers.Entry) error {
		if f.OtherOwner {
			t.Errorf("block %v is still another's", f.Info.ID)
		}
		if !f.Info.ID.IsZero() {
			blocks++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return adopted, blocks
}

func ended(t *testing.T, s *opened, one tiers.Part) bool {
	t.Helper()
	l, err := s.Files(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	return l.Ended
}

// TestAdoptOrphan: what an ended run of another number left becomes this run's, to
// merge and to unlink, and nobody else's while this run lives.
func TestAdoptOrphan(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *opened, c *nodeClock){
		"closed": func(t *testing.T, s *opened, c *nodeClock) { closeStore(t, s) },
		"silent": func(t *testing.T, s *opened, c *nodeClock) { c.pass(lease.SilentFor) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), &nodeClock{}
			one := tiers.Part{Rank: 7, Incarnation: 1}
			left := openStore(t, numbered(dir, 7, 1, c))
			gone, stays := testItem(1, 9000, testName("gone", 1)), testItem(2, 9000, testName("stays", 2))
			put(t, left, gone, stays)

			adopter := openStore(t, numbered(dir, 0, 2, c))
			mine := testItem(3, 9000, testName("mine", 3))
			put(t, adopter, mine)
			if ended(t, adopter, one) {
				t.Error("a run that lives has ended")
			}
			if ok, n := adoptOrphan(t, adopter, one); ok || n > 0 {
				t.Fatalf("adopted %v, %d blocks, of a run that lives", ok, n)
			}
			end(t, left, c)
			adopter.lease.Beat()
			if !ended(t, adopter, one) {
				t.Error("it has not ended")
			}
			if ok, n := adoptOrphan(t, adopter, one); !ok || n != 2 {
				t.Fatalf("adopted %v, %d blocks", ok, n)
			}
			wantBytes(t, adopter, gone, stays, mine)

			// The next run of that number, and a third one, see that somebody has it.
			next, third := openStore(t, numbered(dir, 7, 4, c)), openStore(t, numbered(dir, 5, 5, c))
			wantBytes(t, next, stays)
			u := next.Usage()
			if bytes, runs := next.OthersUsage(); u.OtherOwners != u.Used || bytes != u.OtherOwners || runs != 1 || u.Used == 0 {
				t.Errorf("usage of the next run: %+v", u)
			}
			if ended(t, third, one) {
				t.Error("an adopted part counts as ended")
			}
			if ok, _ := adoptOrphan(t, third, one); ok {
				t.Error("a third run adopted it too")
			}

			evict(t, adopter, gone)
			if m, err := adopter.Merge(t.Context(), 0, adopter.tell); err != nil || m.Segments != 1 || m.Blocks != 1 {
				t.Errorf("merged %+v, %v", m, err)
			}
			settleDown(adopter)
			if _, err := os.Stat(dir + "/" + format.Dir(one)); !os.IsNotExist(err) {
				t.Errorf("the directory is still there: %v", err)
			}
			wantBytes(t, adopter, stays, mine)
		})
	}
}

// TestOrphansOfAnAdopter: once a run that adopted has ended, whoever comes first
// gets what it had, the number's own next run too.
func TestOrphansOfAnAdopter(t *testing.T) {
	for name, second := range map[string]uint32{"a third number": 5, "the number's own": 7} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), &nodeClock{}
			one := tiers.Part{Rank: 7, Incarnation: 1}
			left := openStore(t, numbered(dir, 7, 1, c))
			it := testItem(1, 9000, testName("left", 1))
			put(t, left, it)
			closeStore(t, left)
			first := openStore(t, numbered(dir, 0, 2, c))
			if ok, n := adoptOrphan(t, first, one); !ok || n != 1 {
				t.Fatalf("adopted %v, %d blocks", ok, n)
			}
			second := openStore(t, numbered(dir, second, 3, c))
			if ok, _ := adoptOrphan(t, second, one); ok {
				t.Fatal("adopted from a run that lives")
			}
			for range 3 { // it renews its own token alone
				c.pass(lease.SilentFor / 2)
				first.lease.Beat()
				if ok, _ := adoptOrphan(t, second, one); ok {
					t.Fatal("adopted from a run that renews its token")
				}
			}
			c.pass(lease.SilentFor)
			if ok, n := adoptOrphan(t, second, one); !ok || n == 0 && second.opt.Rank != 7 {
				t.Fatalf("adopted %v, %d blocks of a run that is silent", ok, n)
			}
			if err := first.lease.Renew(context.Background()); err != nil {
				t.Fatal(err) // its own directory is its own
			}
			evict(t, second, it)
			wantNo(t, dir, one)
		})
	}
}

func wantNo(t *testing.T, dir string, one tiers.Part) {
	t.Helper()
	if _, err := os.Stat(dir + "/" + format.Dir(one)); !os.IsNotExist(err) {
		t.Errorf("%v is still there: %v", one, err)
	}
}

// TestAdoptOrphanOnce: of many who try, one adopts.
func TestAdoptOrphanOnce(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	one := tiers.Part{Rank: 7, Incarnation: 1}
	left := openStore(t, numbered(dir, 7, 1, c))
	put(t, left, testItem(1, 9000, testName("left", 1)))
	closeStore(t, left)
	const many = 8
	got := make(chan bool, many)
	for i := range uint64(many) {
		s := openStore(t, numbered(dir, uint32(i%4), 2+i, c))
		go func() {
			ok, err := s.AdoptOrphan(context.Background(), one, func(tiers.Entry) error { return nil })
			got <- ok && err == nil
		}()
	}
	adopters := 0
	for range many {
		select {
		case ok := <-got:
			if ok {
				adopters++
			}
		case <-time.After(time.Minute):
			t.Fatal("no answer")
		}
	}
	if adopters > 1 {
		t.Errorf("%d of %d adopted it", adopters, many)
	}
}

// TestDropsOfOrphans: what another number's run withdrew stays withdrawn until
// somebody has looked whether that hides anything.
func TestDropsOfOrphans(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	one := tiers.Part{Rank: 7, Incarnation: 1}
	left := openStore(t, numbered(dir, 7, 1, c))
	put(t, left, testItem(1, 9000, testName("kept", 1)))
	if err := left.Unlink(block.ID{}, testName("old", 9)); err != nil {
		t.Fatal(err)
	}
	closeStore(t, left)
	o := numbered(dir, 0, 2, c)
	o.Catalogued = true
	adopter := openStore(t, o)
	adopter.Hides(func(names []block.Name) []bool { return make([]bool, len(names)) })
	if ok, _ := adoptOrphan(t, adopter, one); !ok {
		t.Fatal("not adopted")
	}
	evict(t, adopter, testItem(1, 9000))
	if _, err := os.Stat(dir + "/" + format.Dir(one)); err != nil {
		t.Fatalf("the record of a withdrawn name is gone: %v", err)
	}
	asked := 0
	adopter.Hides(func(names []block.Name) []bool { asked += len(names); return make([]bool, len(names)) })
	settleDown(adopter)
	if asked == 0 {
		t.Error("nobody was asked")
	}
	wantNo(t, dir, one)
}

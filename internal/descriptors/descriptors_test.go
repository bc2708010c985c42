package descriptors

import (
	"math"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDivide(t *testing.T) {
	alone := Wishes{Connections: 4096, Files: Unbounded, Shared: SharedWished}
	for _, c := range []struct {
		limit  uint64
		wishes Wishes
		want   Split
	}{
		{100, alone, Split{Own: 50, Connections: 28, Files: 14, Shared: 7}},
		{1024, alone, Split{Own: 128, Connections: 512, Files: 256, Shared: 128}},
		{20000, alone, Split{Own: 128, Connections: 4096, Files: 13728, Shared: 2048}},
		{1024, Wishes{Connections: 4096}, Split{Own: 128, Connections: 896}},
		{1 << 20, Wishes{Connections: 4096, Peers: PeersWished}, Split{Own: 128, Connections: 4096, Peers: 4096}},
		{2, alone, Split{Own: 1, Connections: 1, Files: 1, Shared: 1}},
	} {
		if got := Divide(c.limit, c.wishes); got != c.want {
			t.Errorf("%d: %+v, want %+v", c.limit, got, c.want)
		}
	}
}

// No split is more than the limit allows, none gives a kind more than it wishes,
// and none leaves descriptors unused while a wish is not met.
func TestDivideIsFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	wish := func() int {
		switch rng.IntN(4) {
		case 0:
			return 0
		case 1:
			return Unbounded
		}
		return rng.IntN(10_000)
	}
	for range 10_000 {
		limit := uint64(16 + rng.IntN(30_000))
		if rng.IntN(20) == 0 {
			limit = math.MaxUint64 // unlimited
		}
		w := Wishes{wish(), wish(), wish(), wish()}
		s := Divide(limit, w)
		sum := s.Own + s.Connections + s.Files + s.Peers + s.Shared
		if uint64(sum) > limit {
			t.Fatalf("%d for %+v: %+v are %d", limit, w, s, sum)
		}
		short := false
		for _, k := range [][2]int{{w.Connections, s.Connections}, {w.Files, s.Files}, {w.Peers, s.Peers}, {w.Shared, s.Shared}} {
			if k[1] > k[0] || k[0] > 0 && k[1] < 1 {
				t.Fatalf("%d for %+v: %+v", limit, w, s)
			}
			short = short || k[1] < k[0]
		}
		if short && limit < 1<<20 && int(limit)-sum > 4 {
			t.Fatalf("%d for %+v: %+v leaves %d", limit, w, s, int(limit)-sum)
		}
		if enough := Needed(w); (limit >= enough) != (s.Own == Own && met(w.Connections, s.Connections) && met(w.Files, s.Files) &&
			met(w.Peers, s.Peers) && met(w.Shared, s.Shared)) {
			t.Fatalf("%d for %+v, which needs %d: %+v", limit, w, enough, s)
		}
	}
}

func met(wish, gets int) bool { return wish == Unbounded || gets == wish }

func TestLimit(t *testing.T) {
	n, err := Limit()
	var l unix.Rlimit
	if e := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if n != l.Cur || l.Cur != l.Max {
		t.Errorf("%d, the soft limit is %d and the hard one %d", n, l.Cur, l.Max)
	}
}

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/testing/tracetest"
)

// value reads a key; false when no rank has it.
func value(t *testing.T, c *resp.Client, key string) ([]byte, bool) {
	t.Helper()
	room := make([]byte, 2*markBytes)
	n, err := c.Get(key, room)
	if err != nil && !errors.Is(err, resp.ErrNull) {
		t.Fatalf("GET %s: %v", key, err)
	}
	return room[:n], err == nil
}

// becomes waits until a client reads this value, and "" until it reads none.
func becomes(t *testing.T, c *resp.Client, key, want string) {
	t.Helper()
	until(t, fmt.Sprintf("%q as the value of %s", want, key), func() bool {
		got, ok := value(t, c, key)
		return ok == (want != "") && string(got) == want
	})
}

// ranksTrace is the public trace where there is one, else one that is made.
func ranksTrace(t *testing.T, requests int) string {
	t.Helper()
	if path, there := tracetest.Find(t, conversation); there {
		return path
	}
	file := filepath.Join(t.TempDir(), "trace.jsonl.gz")
	if status, _, said := finish(t, program("cascade"), "trace", "synth", "-o", file, "--requests", fmt.Sprint(requests)); status != 0 {
		t.Fatal(said)
	}
	return file
}

// TestFourRanks goes through what four ranks must do as one.
func TestFourRanks(t *testing.T) {
	j := startJob(t, 4, "32MiB", true)
	t.Run("replay", func(t *testing.T) { replayOverRanks(t, j) })
	t.Run("status", func(t *testing.T) { statusOfRanks(t, j) })
	t.Run("values", func(t *testing.T) { valuesOnRanks(t, j) })
	t.Run("the tool", func(t *testing.T) { toolOnRanks(t, j) })
	t.Run("times to live", func(t *testing.T) { expiryOnRanks(t, j) })
	t.Run("flush", func(t *testing.T) { flushOfRanks(t, j) })
}

func replayOverRanks(t *testing.T, j *job) {
	const requests = 2000
	r := replayed(t, ranksTrace(t, requests), "--limit", fmt.Sprint(requests), "--sockets", j.sockets(), "--workers", "4", "--block-bytes", "4KiB")[0]
	sound(t, r)
	if r.Requests != requests || r.LostRequests != 0 || r.RejectedBlocks != 0 {
		t.Errorf("%d requests of %d, %d lost, %d blocks rejected", r.Requests, requests, r.LostRequests, r.RejectedBlocks)
	}
	if r.Tiers[cascade.RemoteTier].Hits == 0 {
		t.Errorf("no hit came from another rank: %+v", r.Tiers)
	}
	// Homes hear of a put a moment after it, so a little less than all is found.
	if r.HitRatioBlocks < 0.95*r.UnlimitedHitRatio {
		t.Errorf("hit ratio %.4f, an unlimited cache has %.4f", r.HitRatioBlocks, r.UnlimitedHitRatio)
	}
	t.Logf("%d requests, %d blocks in %.1f s: hit ratio %.4f of %.4f possible; shm %d, remote %d, lustre %d; slowest probe %.0f ms, get %.0f ms, put %.0f ms",
		r.Requests, r.Blocks, r.Seconds, r.HitRatioBlocks, r.UnlimitedHitRatio,
		r.Tiers["shm"].Hits, r.Tiers[cascade.RemoteTier].Hits, r.Tiers["lustre"].Hits, r.ProbeUS.Max/1e3, r.GetUS.Max/1e3, r.PutUS.Max/1e3)
}

func statusOfRanks(t *testing.T, j *job) {
	for i, r := range j.ranks {
		status, out, said := finish(t, program("cascade"), "status", "--socket", r.socket, "--json")
		var s struct {
			cascade.Stats
			Peers dht.Stats        `json:"peers"`
			Ranks []dht.RankStatus `json:"ranks"`
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil || status != 0 {
			t.Fatalf("status %d: %v: %s%s", status, err, tailOf(out), said)
		}
		if int(s.Peers.Rank) != i || s.Peers.Ranks != 4 || len(s.Ranks) != 4 {
			t.Errorf("rank %d says it is %d of %d, and lists %d", i, s.Peers.Rank, s.Peers.Ranks, len(s.Ranks))
		}
		for _, one := range s.Ranks {
			if one.State != "alive" || one.Share < 0.20 || one.Share > 0.30 || one.Error != "" {
				t.Errorf("as rank %d sees it: %+v, want alive with about a quarter of the ring", i, one)
			}
		}
		if i == 0 {
			status, out, said = finish(t, program("cascade"), "status", "--socket", r.socket)
			if status != 0 {
				t.Error(said)
			}
			wantWords(t, out, "RING", "25.0 %", "alive", "remote")
			t.Logf("\n%s", out)
		}
	}
}

func valuesOnRanks(t *testing.T, j *job) {
	clients := j.clients()
	for i, c := range clients {
		m := marks{fmt.Sprintf("on-%d", i), 20}
		m.put(t, c)
		m.everywhere(t, clients...)
	}
	var slowest, slowestDel time.Duration
	for i, c := range clients[:2] {
		key := fmt.Sprintf("changing-%d", i)
		for v := range 3 {
			want := fmt.Sprintf("version %d", v)
			writer := clients[(i+v)%len(clients)] // each time another rank
			began := time.Now()
			if err := writer.Set(key, []byte(want)); err != nil {
				t.Fatal(err)
			}
			for _, reader := range clients {
				becomes(t, reader, key, want)
			}
			slowest = max(slowest, time.Since(began))
		}
		began := time.Now()
		n, err := c.Do("DEL", key)
		if err != nil || n.Int != 1 {
			t.Errorf("DEL of a key that other ranks have: %v, %v; want 1", n, err)
		}
		for _, reader := range clients {
			becomes(t, reader, key, "")
		}
		slowestDel = max(slowestDel, time.Since(began))
	}
	t.Logf("seen by all ranks: an overwrite after at most %v, a deletion after at most %v", slowest.Round(time.Millisecond), slowestDel.Round(time.Millisecond))
}

func toolOnRanks(t *testing.T, j *job) {
	const key, text = "of-the-tool", "a value that rank 1 has"
	if err := j.ranks[1].dial(t).Set(key, []byte(text)); err != nil {
		t.Fatal(err)
	}
	becomes(t, j.ranks[2].dial(t), key, text)
	status, out, said := finish(t, program("cascade"), "get", key, "--socket", j.ranks[2].socket)
	if status != 0 || out != text {
		t.Errorf("cascade get on another rank: status %d, %q: %s", status, out, said)
	}
	cli := testneed.Program(t, "redis-cli", "make tools")
	if status, out, said = finish(t, cli, "-s", j.ranks[3].socket, "--raw", "GET", key); status != 0 || out != text+"\n" {
		t.Errorf("redis-cli on another rank: status %d, %q: %s", status, out, said)
	}
	var place dht.KeyPlace
	for i, r := range j.ranks {
		status, out, said := finish(t, program("cascade"), "ring", "--key", key, "--socket", r.socket, "--json")
		var one dht.KeyPlace
		if err := json.Unmarshal([]byte(out), &one); status != 0 || err != nil {
			t.Fatalf("ring: status %d: %v: %s%s", status, err, out, said)
		}
		if i == 0 {
			place = one
		}
		if !one.Stored || one.Partition != place.Partition || one.Digest != place.Digest || len(one.Homes) != 2 || one.Homes[0].Rank != place.Homes[0].Rank {
			t.Errorf("rank %d explains %+v, rank 0 %+v", i, one, place)
		}
		if copies := one.Copies; i == 0 && (len(copies) == 0 || !hasCopy(copies, 1)) {
			t.Errorf("copies %+v, want one on rank 1", copies)
		}
	}
	status, out, _ = finish(t, program("cascade"), "ring", "--key", key, "--socket", j.ranks[0].socket)
	if status != 0 {
		t.Errorf("ring: status %d", status)
	}
	wantWords(t, out, "partition", "rank 1")
	t.Logf("\n%s", out)
	if status, _, _ = finish(t, program("cascade"), "ring", "--key", "nobody has it", "--socket", j.ranks[0].socket); status != 3 {
		t.Errorf("ring of a key that no rank has: status %d, want 3", status)
	}
}

func hasCopy(copies []dht.KeyCopy, on fabric.Rank) bool {
	for _, c := range copies {
		if c.Rank == on && (c.Memory || c.Segment) {
			return true
		}
	}
	return false
}

// expiryOnRanks checks that a name ends on all ranks when it ends where it is.
func expiryOnRanks(t *testing.T, j *job) {
	clients := j.clients()
	if err := clients[1].Set("short", []byte("lived"), "PX", "1500"); err != nil {
		t.Fatal(err)
	}
	becomes(t, clients[2], "short", "lived")
	reply, err := clients[3].Do("PTTL", "short")
	if err != nil || reply.Int <= 0 || reply.Int > 1500 {
		t.Errorf("PTTL on another rank: %v, %v", reply, err)
	}
	for _, c := range clients {
		becomes(t, c, "short", "")
	}
	if err := clients[1].Set("shortened", []byte("later")); err != nil {
		t.Fatal(err)
	}
	becomes(t, clients[2], "shortened", "later")
	if reply, err := clients[1].Do("PEXPIRE", "shortened", "500"); err != nil || reply.Int != 1 {
		t.Errorf("PEXPIRE where the name is: %v, %v", reply, err)
	}
	for _, c := range clients {
		becomes(t, c, "shortened", "")
	}
}

func flushOfRanks(t *testing.T, j *job) {
	clients := j.clients()
	m := marks{"to-flush", 20}
	m.put(t, clients[1])
	m.everywhere(t, clients...)
	if _, err := clients[3].Do("FLUSHDB"); err != nil {
		t.Fatal(err)
	}
	for i, c := range clients {
		until(t, fmt.Sprintf("end of all values on rank %d", i), func() bool { return m.found(t, c) == 0 })
	}
	m.put(t, clients[2]) // what comes after is not flushed
	m.everywhere(t, clients...)
}

// becomesSoon is becomes on the i'th rank that runs, and goes on when it does not.
func becomesSoon(t *testing.T, i int, c *resp.Client, key, want string) {
	t.Helper()
	var got []byte
	var ok bool
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got, ok = value(t, c, key); ok == (want != "") && string(got) == want {
			return
		}
	}
	t.Errorf("%s on rank %d: there %v, with %d bytes; want %d bytes", key, i, ok, len(got), len(want))
}

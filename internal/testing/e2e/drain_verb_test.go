package e2e

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// drainVerb runs cascade drain at a rank's socket and returns its answer.
func drainVerb(t *testing.T, r *rank, flags ...string) (said string, status int, answer drainAnswer) {
	t.Helper()
	cmd := exec.Command(program("cascade"), append([]string{"drain", "--json", "--socket", r.socket}, flags...)...)
	cmd.Env = cleanEnv()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		said = string(exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	if len(out) > 0 {
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
	}
	return said, cmd.ProcessState.ExitCode(), answer
}

type drainAnswer struct {
	Rank    *int   `json:"rank"`
	Written int64  `json:"written"`
	Left    int    `json:"left_blocks"`
	Bytes   int64  `json:"left_bytes"`
	Ended   bool   `json:"ended"`
	Arena   string `json:"arena"`
}

// TestDrainVerb empties one rank of a ring, which ends in good order while clients read and write, and leaves nothing: the
// others have all of it from lustre.
func TestDrainVerb(t *testing.T) {
	j := startJob(t, 2, "64MiB", true)
	all := marks{"m", 100}
	all.put(t, j.ranks[1].dial(t))
	reader := j.ranks[0].dial(t)

	said, status, _ := drainVerb(t, j.ranks[1], "--rank", "0")
	if status != 2 {
		t.Errorf("of another rank: status %d", status)
	}
	wantWords(t, said, "is rank 1, not 0", "srun")

	said, status, answer := drainVerb(t, j.ranks[1], "--rank", "1", "--stay")
	if status != 0 || answer.Ended || answer.Rank == nil || *answer.Rank != 1 || answer.Written != 100 || answer.Left != 0 {
		t.Errorf("--stay: status %d, %+v, %s", status, answer, said)
	}
	more := marks{"n", 50}
	more.put(t, j.ranks[1].dial(t))

	w := startScribe(t, j.ranks[1], "scribe")
	until(t, "acknowledged puts", func() bool { return j.ranks[1].stats(t).DirtyBlocks > 10 })
	said, status, answer = drainVerb(t, j.ranks[1], "--rank", "1")
	if status != 0 || !answer.Ended || answer.Left != 0 || answer.Bytes != 0 || answer.Arena != "" || answer.Written < 50 {
		t.Errorf("status %d, %+v, %s", status, answer, said)
	}
	wantStatus(t, j.ranks[1].status(t), 0, j.ranks[1].stderr)
	j.ranks[1].wantNoArena(t)
	acked, _ := w.stop() // its rank has ended
	for _, m := range []marks{all, more, acked} {
		until(t, "marks "+m.prefix, func() bool { return m.found(t, reader) == m.n })
	}
	until(t, "a ring of one", func() bool { return j.ranks[0].peers(t).Ranks == 1 })
}

// TestDrainVerbRefuses lists what keeps a rank from being drained: it goes on then, with all it has.
func TestDrainVerbRefuses(t *testing.T) {
	t.Run("no lustre", func(t *testing.T) {
		r := start(t, newPlace(t, "8MiB"))
		if err := r.dial(t).Set("k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		said, status, answer := drainVerb(t, r)
		if status != 1 || answer.Ended {
			t.Errorf("status %d, %+v", status, answer)
		}
		wantWords(t, said, "no lustre.dir", "it goes on")
		wantValue(t, r.dial(t), "k", "v")
	})
	t.Run("a rank that does not answer", func(t *testing.T) {
		r := start(t, newPlace(t, "8MiB").withLustre())
		if err := r.dial(t).Set("k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		r.signal(t, syscall.SIGSTOP)
		_, status, answer := drainVerb(t, r, "--deadline", "300ms")
		r.signal(t, syscall.SIGCONT)
		if status != 1 || answer.Ended {
			t.Errorf("status %d, %+v", status, answer)
		}
		wantValue(t, r.dial(t), "k", "v")
	})
	t.Run("not over TCP", func(t *testing.T) {
		cmd := exec.Command(program("cascade"), "drain", "--socket", "127.0.0.1:1")
		cmd.Env = cleanEnv()
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("status %d: %s", cmd.ProcessState.ExitCode(), out)
		}
	})
	t.Run("what comes last is not written", func(t *testing.T) {
		p := newPlace(t, "8MiB").withLustre()
		r := start(t, p, "--deadline-drain", "0s") // the end writes nothing
		if err := r.dial(t).Set("k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		w := startScribe(t, r, "scribe") // goes on until the rank ends: something is dirty then
		until(t, "acknowledged puts", func() bool { return r.stats(t).DirtyBlocks > 3 })
		said, status, answer := drainVerb(t, r)
		r.status(t)
		_, _ = w.stop() // its rank has ended
		if status != 1 || !answer.Ended || answer.Arena != p.arena {
			t.Errorf("status %d, %+v", status, answer)
		}
		wantWords(t, said, "its arena stays", filepath.Base(p.arena), "--rescue")
	})
	t.Run("the rank that is meant", func(t *testing.T) {
		p := newPlace(t, "8MiB").withLustre()
		r := start(t, p)
		if said, status, _ := drainVerb(t, r, "--rank", "3"); status != 2 {
			t.Errorf("a rank that is alone: status %d, %s", status, said)
		}
		if said, status, answer := drainVerb(t, r, "--rank", "0"); status != 0 || !answer.Ended {
			t.Errorf("its own number: status %d, %+v, %s", status, answer, said)
		}
		wantStatus(t, r.status(t), 0, r.stderr)
	})
}

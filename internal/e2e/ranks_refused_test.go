package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/munge/mungetest"
)

// TestStrangersStayOut starts ranks that do not belong to the job: none gets in,
// and both sides say so without the secret.
func TestStrangersStayOut(t *testing.T) {
	j := startJob(t, 2, "16MiB", false)
	other := secretFile(t, j.dir)
	for name, c := range map[string]struct {
		secret string
		more   []string
	}{
		"another secret": {other, nil},
		"another job":    {j.secret, []string{"--job", "another"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(j.ranks[0].stderr.String())
			flags := append(j.flags(5), append(c.more, "--peers-secret-file", c.secret)...)
			r := start(t, newPlace(t, "16MiB"), flags...)
			until(t, "refusal in both logs", func() bool {
				return complains(r.stderr.String()) && complains(j.ranks[0].stderr.String()[before:])
			})
			if err := r.dial(t).Set("of-the-stranger", []byte("x")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // of gossip
			for _, one := range append(j.running(), r) {
				want := 2
				if one == r {
					want = 1
				}
				if n := len(one.ranks(t)); n != want {
					t.Errorf("%s knows %d ranks, want %d", one.socket, n, want)
				}
				for _, file := range []string{j.secret, other} {
					if secret := contentOf(t, file); strings.Contains(one.stderr.String(), secret) {
						t.Error("a secret is in a log")
					}
				}
			}
			if _, ok := value(t, j.ranks[0].dial(t), "of-the-stranger"); ok {
				t.Error("a rank of the job serves what the stranger has")
			}
			t.Logf("the stranger: %s", warnings(r.stderr.String()))
			t.Logf("the job's rank 0: %s", warnings(j.ranks[0].stderr.String()[before:]))
		})
	}
}

// TestMunge starts ranks that prove their user by MUNGE: they are one cache, and
// one that has the secret but no munged, or that of another cluster, stays out.
func TestMunge(t *testing.T) {
	here := mungetest.Start(t)
	j := startJob(t, 2, "16MiB", false, "--peers-munge", "require", "--peers-munge-socket", here)
	m := marks{"by-munge", 20}
	m.put(t, j.ranks[0].dial(t))
	m.everywhere(t, j.ranks[1].dial(t))
	if link := j.ranks[0].peers(t).Link; !strings.Contains(link, "MUNGE") {
		t.Errorf("the rank's link: %q", link)
	}
	for i, munge := range [][]string{{"--peers-munge", "off"}, {"--peers-munge-socket", mungetest.Start(t)}} {
		before := len(j.ranks[0].stderr.String())
		r := start(t, newPlace(t, "16MiB"), j.flags(5+i, munge...)...)
		until(t, "refusal in the log of the job's rank 0", func() bool {
			_, _ = value(t, r.dial(t), m.key(0)) // so that it asks
			return complains(j.ranks[0].stderr.String()[before:])
		})
		if n := m.found(t, r.dial(t)); n != 0 {
			t.Errorf("with %v: %d values were read", munge, n)
		}
		r.kill()
	}
	status, out, said := finish(t, program("cascaded"), "--peers-munge", "require", "--peers-munge-socket", "/nowhere", "--peers-fabric", "tcp",
		"--peers-secret-file", j.secret, "--shm-path", filepath.Join(t.TempDir(), "arena"), "--socket", filepath.Join(t.TempDir(), "s"))
	if status == 0 || !strings.Contains(said, "start munged") {
		t.Errorf("without a munged: status %d, %s%s", status, out, said)
	}
}

// complains reports whether a rank's log has a warning about another rank.
func complains(log string) bool { return warnings(log) != "" }

func warnings(log string) string {
	var found []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return strings.Join(found, "\n")
}

func contentOf(t *testing.T, file string) string {
	t.Helper()
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(p))
}

// TestSecretOthersCanRead refuses to start with a secret that is none.
func TestSecretOthersCanRead(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"group may read it": func(file string) error { // a group that this process is not in
			if err := os.Chown(file, -1, 54321); err != nil && os.Geteuid() == 0 {
				return err
			}
			return os.Chmod(file, 0o640)
		},
		"too short": func(file string) error { return os.WriteFile(file, []byte("short\n"), 0o600) },
		"missing":   os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, "16MiB", false)
			secret := contentOf(t, j.secret)
			if err := spoil(j.secret); err != nil {
				t.Fatal(err)
			}
			r := launch(t, newPlace(t, j.shm), j.flags(0)...)
			if r.status(t) == 0 {
				t.Error("it started")
			}
			said := r.stderr.String()
			switch name {
			case "group may read it":
				wantWords(t, said, "secret_file", "0640", "chmod 600")
			case "too short":
				wantWords(t, said, "secret", "16")
			default:
				wantWords(t, said, "secret_file", "0600")
			}
			if strings.Contains(said, secret) {
				t.Error("the secret is in the log")
			}
		})
	}
}

// TestTwoProcessesOneNumber starts a second process with a rank's number: the
// later one stays, and the earlier one ends and says why.
func TestTwoProcessesOneNumber(t *testing.T) {
	j := startJob(t, 3, "16MiB", false)
	m := marks{"before", 10}
	m.put(t, j.ranks[1].dial(t))
	earlier := j.ranks[victim]
	j.places[victim] = newPlace(t, j.shm)
	later := j.add(victim)
	wantStatus(t, earlier.status(t), 1, earlier.stderr)
	wantWords(t, earlier.stderr.String(), "another process has this rank's number", "give each rank its own")
	j.agree(3)
	m.everywhere(t, later.dial(t), j.ranks[0].dial(t))
	time.Sleep(time.Second)
	select {
	case <-later.ended:
		t.Errorf("the later one ended too: %s", tailOf(later.stderr.String()))
	default:
	}
}

package launch

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestRescueCommand: each node's rank has the number that it had, whichever nodes are left, and what ranks of a ring get
// besides it does not have.
func TestRescueCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	p, err := prepare(t, Request{Env: inJob("CASCADE_PEERS_ADVERTISE=127.0.0.1", "CASCADE_LUSTRE_DIR=/lustre"), Dir: ".", File: "/etc/c.toml"})
	if err != nil {
		t.Fatal(err)
	}
	got := p.rescueCommand(0, []string{"n0", "n2"})
	for flag, want := range map[string]string{"--nodes": "2", "--ntasks": "2", "--nodelist": "n[0,2]", "--mpi": "none", "--config": "/etc/c.toml", "--job": "17", "--kill-on-bad-exit": "0"} {
		if value := valueOf(got, flag); value != want {
			t.Errorf("%s is %q, want %q", flag, value, want)
		}
	}
	script := got[slices.Index(got, "-c")+1]
	if !strings.Contains(script, "n0) r=0 ;; n2) r=2 ;;") || !strings.HasSuffix(script, `exec "$@" --rescue --rank "$r"`) {
		t.Errorf("script %q", script)
	}
	if !slices.Contains(got, os.Args[0]) || slices.Contains(got, "--peers-seeds") || strings.Contains(strings.Join(got, " "), "--peers-gossip") {
		t.Errorf("command %q", got)
	}
}

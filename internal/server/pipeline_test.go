package server

import (
	"fmt"
	"strings"
	"testing"
)

// TestPipelinesAreRequests: clients that know nothing of parents tell the order of a chain by
// what they ask for, or put, together; commands that stand alone tell nothing.
func TestPipelinesAreRequests(t *testing.T) {
	for name, ask := range map[string][]string{
		"EXISTS, several keys": {"EXISTS k0 k1 k2 k3"},
		"EXISTS, a pipeline":   {"EXISTS k0", "EXISTS k1", "EXISTS k2", "EXISTS k3"},
		"GET, a pipeline":      {"GET k0", "GET k1", "GET k2", "GET k3"},
		"MGET":                 {"MGET k0 k1 k2 k3"},
		"SET, a pipeline":      {"SET k0 v", "SET k1 v", "SET k2 v", "SET k3 v"},
		"CASCADE.PROBE":        {"CASCADE.PROBE redis/0 k0 k1 k2 k3"},
		"CASCADE.ADVISE":       {"CASCADE.ADVISE redis/0 100 k0 k1 k2 k3"},
		"CASCADE.CONTAINS":     {"CASCADE.CONTAINS redis/0 k0 k1 k2 k3"},
		"two databases":        {"EXISTS k0", "EXISTS k1", "SELECT 1", "EXISTS k2", "EXISTS k3", "SELECT 0"},
		"alone":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 8<<20)
			c := r.client("unix")
			do := func(lines ...string) {
				for _, line := range lines {
					c.Send(strings.Fields(line)...)
				}
				if err := c.Flush(); err != nil {
					t.Fatal(err)
				}
				for c.Waiting() > 0 {
					if _, err := c.Receive(); err != nil {
						t.Fatal(err)
					}
				}
			}
			do(ask...)
			for i := range 4 {
				do(fmt.Sprint("SET k", i, " v"))
			}
			var got []string
			for i := range 4 {
				info, _ := r.store.Stat(t.Context(), "redis/0", fmt.Sprint("k", i))
				got = append(got, info.Parent)
			}
			want := ",k0,k1,k2"
			switch name {
			case "two databases":
				want = ",k0,,"
			case "alone":
				want = ",,,"
			}
			if strings.Join(got, ",") != want {
				t.Errorf("parents %q, want %q", got, want)
			}
		})
	}
}

package hostlist

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// lists are golden: what "scontrol show hostnames" of Slurm 22.05 prints for each.
var lists = map[string]string{
	"":                        "",
	"nid[001-004,007]":        "nid001 nid002 nid003 nid004 nid007",
	"a[1-2]b[3-4]":            "a1b3 a1b4 a2b3 a2b4",
	"n[1-2][3-4]":             "n13 n14 n23 n24",
	"x[0-1]y[08-10]z[1,3]":    "x0y08z1 x0y08z3 x1y08z1 x1y08z3 x0y09z1 x0y09z3 x1y09z1 x1y09z3 x0y10z1 x0y10z3 x1y10z1 x1y10z3",
	"[1-2]b[3-4]c[5-6]d[7-8]": "1b3c5d7 1b3c5d8 2b3c5d7 2b3c5d8 1b4c5d7 1b4c5d8 2b4c5d7 2b4c5d8 1b3c6d7 1b3c6d8 2b3c6d7 2b3c6d8 1b4c6d7 1b4c6d8 2b4c6d7 2b4c6d8",
	"n[1-3],m5,k[01-02]":      "n1 n2 n3 m5 k01 k02",
	"n[9-11]":                 "n9 n10 n11",
	"n[09-11]":                "n09 n10 n11",
	"n[3,1,2]":                "n3 n1 n2",
	"n[1-1]":                  "n1",
	"a,,b":                    "a b",
	",a":                      "a",
	"n1 n2":                   "n1 n2",
	"n[1-002]":                "n1 n2",
	"n[01-1]":                 "n01",
	"n[00-1]":                 "n00 n01",
	"n[000]":                  "n000",
	"n[1-2],n[2-3]":           "n1 n2 n2 n3",
	"[1-3]":                   "1 2 3",
	"12":                      "12",
	"n[999999999999999999]":   "n999999999999999999",
}

func TestExpand(t *testing.T) {
	for list, want := range lists {
		hosts, err := Expand(list)
		if got := strings.Join(hosts, " "); got != want || err != nil {
			t.Errorf("%q is %q, %v, want %q", list, got, err, want)
		}
	}
	if hosts, err := Expand("n99999999999999999999999"); err != nil || !slices.Equal(hosts, []string{"n99999999999999999999999"}) {
		t.Errorf("%q, %v", hosts, err) // which Slurm makes another name of
	}
	// Slurm refuses text behind the last bracket; other tools write it.
	if hosts, err := Expand("r[1-2]-ib"); err != nil || !slices.Equal(hosts, []string{"r1-ib", "r2-ib"}) {
		t.Errorf("%q, %v", hosts, err)
	}
}

// bounded are lists that stand for too much.
var bounded = []string{
	"n[0-65536]", "n[0-999999999999999999]", "n[0-65535],m", "n[0-255]m[0-256]", "a[0-9]b[0-9]c[0-9]d[0-9]e[0-9]",
	"n" + strings.Repeat("[0-9]", 1<<16), "n[0-65535]" + strings.Repeat("[0]", 200), "n[" + strings.Repeat("0-65535,", 100) + "1]", strings.Repeat("x", MaxName+1),
	strings.Repeat("x", 1<<20) + "[0-65535]", strings.Repeat("x", MaxName) + "[1]", strings.Repeat("[1]", 1<<18), strings.Repeat("x[0-9]", 1<<17),
}

func TestExpandRefuses(t *testing.T) {
	for _, list := range bounded {
		if hosts, err := Expand(list); !errors.Is(err, ErrLarge) {
			t.Errorf("%s: %d hosts, %v", excerpt(list), len(hosts), err)
		}
	}
	for _, list := range []string{
		"n[2-1]", "n[1-3", "n1]", "n[]", "n[1,,2]", "n[a-b]", "n[1-3]]", "n[[1-2]]", "n[1[2]]", "n[1 ,2]", "n[1-]", "n[-1]", "n[1-2-3]",
		"n[0x1-0x3]", "n[+1]", "n[1_0]", "n[1234567890123456789]", "n[0000000000000000000001]", "[", "]", "n[٣]",
	} {
		if hosts, err := Expand(list); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: %q, %v", list, hosts, err)
		}
	}
	if hosts, err := Expand("n[0-65535]"); err != nil || len(hosts) != MaxHosts || hosts[MaxHosts-1] != "n65535" {
		t.Errorf("the largest list: %d hosts, %v", len(hosts), err)
	}
}

// compressed are golden: what "scontrol show hostlist" of Slurm 22.05 prints for each.
var compressed = map[string]string{
	"":                                   "",
	"nid001 nid002 nid003 nid004 nid007": "nid[001-004,007]",
	"a1b3 a1b4 a2b3 a2b4":                "a1b[3-4],a2b[3-4]",
	"n1 n01 n2 n02":                      "n[1,01,2,02]",
	"n9 n10 n11":                         "n[9-11]",
	"n09 n10 n11":                        "n[09-11]",
	"n99 n100":                           "n[99-100]",
	"n099 n100":                          "n[099-100]",
	"n8 n9 n10 n011":                     "n[8-10,011]",
	"n3 n1 n2":                           "n[3,1-2]",
	"n1 n1":                              "n[1,1]",
	"n0 n00 n000":                        "n[0,00,000]",
	"n2 m1 n3":                           "n2,m1,n3",
	"c a b":                              "c,a,b",
	"n":                                  "n",
	"n007":                               "n007",
	"1 2 3":                              "[1-3]",
	"n1a n2a":                            "n1a,n2a",
}

func TestCompress(t *testing.T) {
	for hosts, want := range compressed {
		if got, err := Compress(strings.Fields(hosts)); got != want || err != nil {
			t.Errorf("%q is %q, %v, want %q", hosts, got, err, want)
		}
	}
	for _, host := range []string{"", "a,b", "a b", "a[1]", "]", "a\n"} {
		if list, err := Compress([]string{"n1", host}); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: %q, %v", host, list, err)
		}
	}
	for name, hosts := range map[string][]string{"many": make([]string, MaxHosts+1), "long": {strings.Repeat("x", MaxName+1)}} {
		if _, err := Compress(hosts); !errors.Is(err, ErrLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAsSlurm compares with the scontrol that is installed: show hostnames and show
// hostlist need a configuration, and no cluster.
func TestAsSlurm(t *testing.T) {
	scontrol := testneed.Program(t, "scontrol", "make tools") // the golden lists above are its answers
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=none\nSlurmctldHost=none\nNodeName=none\nPartitionName=none Nodes=none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", conf)
	for list := range lists {
		if list == "" {
			continue // Slurm prints an empty line
		}
		hosts, err := Expand(list)
		if err != nil {
			t.Errorf("%q: %v", list, err)
		}
		out, err := exec.Command(scontrol, "show", "hostnames", list).Output()
		if want := strings.Fields(string(out)); err != nil || !slices.Equal(hosts, want) {
			t.Errorf("%q is %q, and to Slurm %q, %v", list, hosts, want, err)
		}
	}
	for hosts, want := range compressed {
		if hosts == "" {
			continue
		}
		out, err := exec.Command(scontrol, "show", "hostlist", strings.ReplaceAll(hosts, " ", ",")).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q is %q to Slurm, %v, and not %q", hosts, got, err, want)
		}
	}
}

// FuzzExpand: what any list stands for is bounded, and comes back through Compress.
func FuzzExpand(f *testing.F) {
	for list := range lists {
		f.Add(list)
	}
	for _, list := range bounded[:6] {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		hosts, err := Expand(list)
		if err != nil {
			if !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrLarge) {
				t.Fatal(err)
			}
			return
		}
		roundTrip(t, hosts)
	})
}

// FuzzCompress: hosts of any names, one a line, come back through Expand.
func FuzzCompress(f *testing.F) {
	for hosts := range compressed {
		f.Add(strings.ReplaceAll(hosts, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, lines string) {
		hosts := strings.Split(lines, "\n")
		if _, err := Compress(hosts); err == nil {
			roundTrip(t, hosts)
		} else if !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrLarge) {
			t.Fatal(err)
		}
	})
}

func roundTrip(t *testing.T, hosts []string) {
	t.Helper()
	list, err := Compress(hosts)
	if err != nil {
		t.Fatalf("%q: %v", hosts, err)
	}
	again, err := Expand(list)
	if err != nil || !slices.Equal(again, hosts) {
		t.Fatalf("%q became %q, %v, by way of %q", hosts, again, err, list)
	}
}

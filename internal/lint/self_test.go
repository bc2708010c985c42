package lint

import (
	"fmt"
	"strings"
	"testing"
)

// Sources that prove of each rule that it can fail, and that it does not fail
// next door. want is a piece of the only finding, "" for none.
var cases = map[string]map[string]struct {
	path string
	text string
	want string
}{
	"layers": {
		"command imports anything":       {"cmd/cascaded/a.go", imports("internal/server", "cascade", "tiers/shm", "lustre/segment"), ""},
		"command imports a rank":         {"cmd/cascaded/a.go", imports("internal/rank", "internal/rank/peers"), ""},
		"rank imports the server":        {"internal/rank/a.go", imports("internal/server", "internal/rank/peers", "internal/preflight"), ""},
		"server imports a rank":          {"internal/server/a.go", imports("internal/rank"), "lies above"},
		"tool imports a benchmark":       {"cmd/cascade/a.go", imports("cmd/cascade-bench/kit"), "neighbour"},
		"benchmark imports another":      {"cmd/cascade-bench/tunerbench/a.go", imports("cmd/cascade-bench/kit"), ""},
		"daemon imports a test rig":      {"cmd/cascaded/a.go", imports("internal/testing/testlog"), "neighbour"},
		"part imports a test rig":        {"internal/arena/a.go", imports("internal/testing/testlog"), "a part knows no other"},
		"server imports the store":       {"internal/server/a.go", imports("cascade", "internal/resp"), ""},
		"server imports slurm":           {"internal/server/a.go", imports("slurm"), ""},
		"server imports a command":       {"internal/server/a.go", imports("cmd/cascade"), "lies above"},
		"server imports the replayer":    {"internal/server/a.go", imports("internal/replay"), "neighbour"},
		"slurm imports the store":        {"slurm/a.go", imports("cascade"), ""},
		"slurm imports the server":       {"slurm/a.go", imports("internal/server"), "lies above"},
		"store imports policy and tiers": {"cascade/a.go", imports("cascade/policy", "tiers", "internal/block"), ""},
		"store imports a kind of tier":   {"cascade/a.go", imports("tiers/shm"), "none of its kinds"},
		"store imports slurm":            {"cascade/a.go", imports("slurm"), "lies above"},
		"policy imports a word":          {"cascade/policy/a.go", imports("internal/block"), "standard library only"},
		"policy imports the store":       {"cascade/policy/a.go", imports("cascade"), "standard library only"},
		"tier imports what it adapts":    {"tiers/shm/a.go", imports("tiers", "tiers/memory", "internal/arena"), ""},
		"tier imports lustre":            {"tiers/shm/a.go", imports("lustre/segment"), "lies above"},
		"tier imports the store":         {"tiers/shm/a.go", imports("cascade"), "lies above"},
		"tier imports policy":            {"tiers/shm/a.go", imports("cascade/policy"), "lies above"},
		"fabric imports a part":          {"dht/fabric/tcp/a.go", imports("dht/members", "internal/metrics"), ""},
		"fabric imports lustre":          {"dht/fabric/a.go", imports("lustre/segment"), "neighbour"},
		"gpu implements a tier":          {"gpu/store/a.go", imports("tiers"), ""},
		"lustre implements a tier":       {"lustre/segment/a.go", imports("tiers"), ""},
		"part imports the vocabulary":    {"internal/arena/a.go", imports("internal/block", "internal/units"), ""},
		"part imports itself":            {"internal/vfs/fault/a.go", imports("internal/vfs"), ""},
		"part imports a part":            {"internal/arena/a.go", imports("internal/vfs"), "a part knows no other"},
		"part imports lustre":            {"internal/arena/a.go", imports("lustre"), "a part knows no other"},
		"part imports the server":        {"internal/arena/a.go", imports("internal/server"), "a part knows no other"},
		"folder without a layer":         {"utils/a.go", "package utils\n", "no layer"},
		"import without a layer":         {"cmd/cascade/a.go", imports("utils"), "no layer"},
		"name that only begins alike":    {"cascadex/a.go", "package x\n", "no layer"},
		"other modules":                  {"internal/arena/a.go", "package a\nimport _ \"golang.org/x/sys/unix\"\n", ""},
		"tests may know more":            {"cascade/a_test.go", imports("tiers/shm"), ""},
	},
	"static": {
		"the daemon":        {"internal/rank/a.go", imports("gpu/cuda"), "internal/rank imports"},
		"another neighbour": {"gpu/store/a.go", imports("gpu/cuda"), "gpu/store imports"},
		"its program":       {"cmd/cascade-gpu/a.go", imports("gpu/cuda"), ""},
		"the module":        {"gpu/gio/a.go", "package a\nimport _ \"github.com/ebitengine/purego\"\n", "gpu/gio imports"},
		"tests may":         {"gpu/store/a_test.go", imports("gpu/cuda"), ""},
	},
	"pure policy": {
		"types of time":     {"cascade/policy/a.go", "package a\nimport \"time\"\nvar d time.Duration\n", ""},
		"reads the clock":   {"cascade/policy/a.go", "package a\nimport \"time\"\nvar d = time.Now()\n", "time.Now"},
		"measures time":     {"cascade/policy/sub/a.go", "package a\nimport t \"time\"\nvar d = t.Since\n", "time.Since"},
		"os":                {"cascade/policy/a.go", "package a\nimport _ \"os\"\n", "imports os"},
		"net":               {"cascade/policy/a.go", "package a\nimport _ \"net/http\"\n", "imports net/http"},
		"io":                {"cascade/policy/a.go", "package a\nimport _ \"io\"\n", "imports io"},
		"sync":              {"cascade/policy/a.go", "package a\nimport _ \"sync/atomic\"\n", "imports sync/atomic"},
		"begins alike":      {"cascade/policy/a.go", "package a\nimport _ \"iter\"\n", ""},
		"the scheduler":     {"gpu/slack/a.go", "package a\nimport \"time\"\nvar d = time.Now()\n", "time.Now"},
		"outside of policy": {"cascade/a.go", "package a\nimport \"time\"\nvar d = time.Now()\n", ""},
		"in a test":         {"cascade/policy/a_test.go", "package a\nimport _ \"os\"\n", ""},
	},
	"no exit": {
		"log.Fatal":        {"tiers/a.go", "package a\nimport \"log\"\nfunc f() { log.Fatal(1) }\n", "log.Fatal"},
		"log.Fatalf":       {"tiers/a.go", "package a\nimport l \"log\"\nfunc f() { l.Fatalf(\"\") }\n", "log.Fatalf"},
		"log.Panicln":      {"tiers/a.go", "package a\nimport \"log\"\nvar f = log.Panicln\n", "log.Panicln"},
		"os.Exit":          {"tiers/a.go", "package a\nimport \"os\"\nfunc f() { os.Exit(1) }\n", "os.Exit"},
		"method of a log":  {"tiers/a.go", "package a\nimport \"log\"\nfunc f(l *log.Logger) { l.Fatalf(\"\") }\n", "method.Fatalf"},
		"log in a field":   {"tiers/a.go", "package a\nfunc (s *store) f() { s.opt.log.Panicln(1) }\n", "method.Panicln"},
		"another's log":    {"tiers/a.go", "package a\nimport \"x/zap\"\nvar f = zap.L().Fatal\n", "method.Fatal"},
		"another's Fatal":  {"tiers/a.go", "package a\nimport \"x/glog\"\nvar f = glog.Fatalf\n", "x/glog.Fatalf"},
		"a suite's test":   {"tiers/a.go", "package a\nimport \"testing\"\nfunc f(t testing.TB, b *testing.B) { t.Fatal(1); func() { b.Fatalf(\"\") }() }\n", ""},
		"another testing":  {"tiers/a.go", "package a\nimport \"x/testing\"\nfunc f(t testing.TB) { t.Fatal(1) }\n", "method.Fatal"},
		"Fatal declared":   {"tiers/a.go", "package a\ntype logger interface{ Fatalf(string) }\n", ""},
		"FatalError":       {"tiers/a.go", "package a\nvar f = err.FatalError\n", ""},
		"syscall.Exit":     {"tiers/a.go", "package a\nimport \"syscall\"\nvar f = syscall.Exit\n", "syscall.Exit"},
		"unix.Exit":        {"tiers/a.go", "package a\nimport \"golang.org/x/sys/unix\"\nfunc f() { unix.Exit(1) }\n", "unix.Exit"},
		"runtime.Goexit":   {"tiers/a.go", "package a\nimport \"runtime\"\nfunc f() { defer runtime.Goexit() }\n", "runtime.Goexit"},
		"panic":            {"tiers/a.go", "package a\nfunc f() { panic(1) }\n", "panic"},
		"own panic":        {"tiers/a.go", "package a\nfunc f(panic func()) { panic() }\n", ""},
		"log.Print":        {"tiers/a.go", "package a\nimport \"log\"\nfunc f() { log.Print(1) }\n", ""},
		"variable os":      {"tiers/a.go", "package a\nfunc f(os interface{ Exit() }) { os.Exit() }\n", ""},
		"an assertion":     {"tiers/a.go", "//go:build invariants\n\npackage a\nfunc f() { panic(1) }\n", ""},
		"in every build":   {"tiers/a.go", "//go:build !invariants\n\npackage a\nfunc f() { panic(1) }\n", "panic"},
		"in a command":     {"cmd/cascade/a.go", "package a\nimport \"os\"\nfunc f() { os.Exit(1); panic(1) }\n", ""},
		"beside a command": {"cmdline/a.go", "package a\nfunc f() { panic(1) }\n", "panic"},
		"in a test":        {"tiers/a_test.go", "package a\nimport \"log\"\nfunc f() { log.Fatal(1) }\n", ""},
	},
	"package doc": {
		"five lines":         {"tiers/doc.go", "// Package a\n//\n// b\n//\n// c\npackage a\n", ""},
		"four lines":         {"tiers/doc.go", "// Package a\n//\n// b\n// c\npackage a\n", "4 lines"},
		"detached":           {"tiers/doc.go", "// Package a\n//\n// b\n//\n// c\n\npackage a\n", "no package comment"},
		"in another file":    {"tiers/a.go", "// Package a\n//\n// b\n//\n// c\npackage a\n", "no doc.go"},
		"package of a test":  {"tiers/a_test.go", "package a\n", "no doc.go"},
		"command without it": {"cmd/cascade/main.go", "package main\n", "no doc.go"},
	},
	"limits": {
		"does not":        {"tiers/doc.go", doc("", "The package keeps, and does", "not evict."), ""},
		"knows no":        {"tiers/doc.go", doc("", "This suite knows no tier."), ""},
		"only what it is": {"tiers/doc.go", doc("", "The package keeps bytes."), "no sentence"},
		"of another":      {"tiers/doc.go", doc("", "The package keeps. A pin does not move."), "no sentence"},
		"in the glossary": {"tiers/doc.go", doc("", "Glossary", "", "\tpin  what the package does not move"), "no sentence"},
	},
	"no append mode": {
		"flag":        {"lustre/a.go", "package a\nimport \"os\"\nvar f = os.O_RDWR | os.O_APPEND\n", "O_APPEND"},
		"other flags": {"lustre/a.go", "package a\nimport \"os\"\nvar f = os.O_RDWR // not O_APPEND\n", ""},
		"in a test":   {"lustre/a_test.go", "package a\nimport \"golang.org/x/sys/unix\"\nvar f = unix.O_APPEND\n", "O_APPEND"},
	},
	"names": {
		"standard":             {"tiers/a.go", "package a\ntype T struct{ fallback, lander int }\nfunc (T) settleRest() {}\n", ""},
		"type":                 {"tiers/a.go", "package a\ntype entity int\n", "the name entity"},
		"function":             {"dht/a.go", "package a\nfunc lookLand() {}\nfunc land() {}\n", "the name land"},
		"method":               {"dht/a.go", "package a\ntype T int\nfunc (T) Bury() {}\n", "the name Bury"},
		"method of interface":  {"dht/a.go", "package a\ntype T interface{ RefuteAll() }\n", "the name RefuteAll"},
		"field":                {"dht/a.go", "package a\ntype T struct{ told uint64 }\n", "the name told"},
		"file":                 {"dht/shortage_test.go", "package a\n", "the name shortage"},
		"package":              {"cmd/cascaded/heed/a.go", "package heed\n", "the name heed"},
		"flag":                 {"cmd/cascade/a.go", "package a\nfunc f() { flags.Int64Var(&n, \"lend-bytes\", 0, \"a tenure\") }\n", "the name lend-bytes"},
		"metric":               {"dht/a.go", "package a\nvar m = \"cascade_told_total\"\n", "the name cascade_told_total"},
		"two words":            {"dht/a.go", "package a\nfunc TakeIn() {}\n", "the name TakeIn"},
		"variable, sentence":   {"dht/a.go", "package a\n\n// void: an entity\nvar said = \"lend\"\n", ""},
		"where it is ordinary": {"internal/resp/a.go", "package a\nfunc fill() {}\n", ""},
	},
	"type size": {
		"60 methods":       {"tiers/a.go", "package a\ntype T int\n" + repeat("func (T) m%d() {}\n", 60), ""},
		"61 methods":       {"tiers/a.go", "package a\ntype T[K any] struct{}\n" + repeat("func (*T[K]) m%d() {}\n", 61), "61 methods"},
		"25 fields":        {"tiers/a.go", "package a\ntype T struct {\n" + repeat("f%d int\n", 25) + "}\n", ""},
		"26 fields":        {"tiers/a.go", "package a\ntype T struct {\n" + repeat("f%d int\n", 26) + "}\nfunc (T) m() {}\n", "26 fields"},
		"without methods":  {"tiers/a.go", "package a\ntype T struct {\n" + repeat("f%d int\n", 26) + "}\n", ""},
		"plain record":     {"tiers/a.go", "package a\ntype T struct {\n" + repeat("F%d int\n", 26) + "}\nfunc (T) m() {}\n", ""},
		"fields of fields": {"tiers/a.go", "package a\ntype T struct {\n" + repeat("f%d int\n", 24) + "mu struct{ a, b int }\n}\nfunc (T) m() {}\n", "27 fields"},
		"command":          {"cmd/a.go", "package a\ntype T struct {\n" + repeat("f%d int\n", 26) + "}\n", ""},
	},
	"package length": {
		"3500 lines":     {"tiers/a.go", "package a\n" + strings.Repeat("\n", 3499), ""},
		"3501 lines":     {"tiers/a.go", "package a\n" + strings.Repeat("\n", 3500), "3501 lines"},
		"a larger bound": {"lustre/segment/a.go", "package a\n" + strings.Repeat("\n", 4999), ""},
		"above that":     {"lustre/segment/a.go", "package a\n" + strings.Repeat("\n", 5000), "5001 lines"},
	},
	"file length": {
		"600 lines":         {"tiers/a.go", "package a\n" + strings.Repeat("\n", 599), ""},
		"601 lines":         {"tiers/a.go", "package a\n" + strings.Repeat("\n", 600), "601 lines"},
		"601 lines of test": {"tiers/a_test.go", "package a\n" + strings.Repeat("\n", 600), "601 lines"},
	},
	"unfinished": {
		"to do":       {"tiers/a.go", "package a\n\n// TODO: all\nvar a int\n", "TODO"},
		"to fix":      {"tiers/a_test.go", "package a\n\nvar a int // FIXME\n", "FIXME"},
		"crosses":     {"tiers/a.go", "package a\n\n/* see XXX(me) */\n", "XXX"},
		"in a string": {"tiers/a.go", "package a\n\nvar a = \"TODO\"\n", ""},
		"in a word":   {"tiers/a.go", "package a\n\n// TODOS and XXXL\nvar a int\n", ""},
	},
	"exported doc": {
		"function":              {"tiers/a.go", "package a\nfunc F() {}\n", "F has no doc"},
		"comment at its end":    {"tiers/a.go", "package a\nfunc F() {} // does it\n", "F has no doc"},
		"documented function":   {"tiers/a.go", "package a\n\n// F does.\nfunc F() {}\n", ""},
		"hidden function":       {"tiers/a.go", "package a\nfunc f() {}\n", ""},
		"method":                {"tiers/a.go", "package a\n\n// T is.\ntype T[K any] struct{}\nfunc (t *T[K]) M() {}\n", "M has no doc"},
		"method of hidden type": {"tiers/a.go", "package a\ntype t struct{}\nfunc (t) M() {}\n", ""},
		"type":                  {"tiers/a.go", "package a\ntype T struct{}\n", "T has no doc"},
		"type in a group":       {"tiers/a.go", "package a\n\n// Types.\ntype (\n\tT struct{}\n)\n", "T has no doc"},
		"documented type":       {"tiers/a.go", "package a\n\n// T is.\ntype T struct{}\n", ""},
		"constant":              {"tiers/a.go", "package a\nconst C = 1\n", "C has no doc"},
		"constant in a group":   {"tiers/a.go", "package a\n\n// All of them.\nconst (\n\tC = 1\n)\n", ""},
		"constant with an end":  {"tiers/a.go", "package a\nconst (\n\tC = 1 // one\n)\n", ""},
		"variable":              {"tiers/a.go", "package a\nvar a, V = 1, 2\n", "V has no doc"},
		"in a test":             {"tiers/a_test.go", "package a\nfunc TestF() {}\n", ""},
	},
}

// repeat returns n lines that differ by their number.
func repeat(line string, n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, line, i)
	}
	return text.String()
}

// doc returns a doc.go whose comment has these lines.
func doc(lines ...string) string {
	text := "// Package a is.\n"
	for _, l := range lines {
		space := " "
		if l == "" || l[0] == '\t' {
			space = ""
		}
		text += "//" + space + l + "\n"
	}
	return text + "package a\n"
}

// imports returns a source that imports packages of the module.
func imports(dirs ...string) string {
	text := "package a\n"
	for _, d := range dirs {
		text += "import _ \"" + module + "/" + d + "\"\n"
	}
	return text
}

func TestRulesCanFail(t *testing.T) {
	if len(cases) != len(rules) {
		t.Errorf("%d rules have cases, there are %d rules", len(cases), len(rules))
	}
	for _, r := range rules {
		refused, passed := 0, 0
		for name, c := range cases[r.name] {
			got := judge(t, r, c.path, c.text)
			switch {
			case c.want == "" && len(got) == 0:
				passed++
			case c.want != "" && len(got) == 1 && strings.Contains(got[0].what, c.want):
				refused++
			default:
				t.Errorf("%s, %s: found %v, want %q", r.name, name, got, c.want)
			}
		}
		if refused == 0 || passed == 0 {
			t.Errorf("%s: %d sources refused and %d passed prove nothing", r.name, refused, passed)
		}
		if len(r.reason) < 20 {
			t.Errorf("%s: gives no reason", r.name)
		}
	}
}

// judge applies a rule to a package of one file in memory.
func judge(t *testing.T, r rule, path, text string) []finding {
	t.Helper()
	f, err := parse(path, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return r.check(pkg{dir: path[:strings.LastIndex(path, "/")], files: []file{f}})
}

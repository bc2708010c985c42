package gio

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"cascadekv/internal/testing/testneed"
)

// cNames are gio.h's names of the Go structs, and of the fields that differ.
var cNames = []struct {
	name   string
	of     reflect.Type
	fields map[string]string // by gio.h's name
}{
	{"gio_header", reflect.TypeFor[header](), map[string]string{"num_ioctx": "numIOCTX", "slot_bytes": "slotBytes", "sqes_offset": "sqesOffset",
		"iocb_offset": "iocbOffset", "files": "filesCount", "sq_tail": "sqTail", "cq_tail": "cqTail"}},
	{"gio_rings", reflect.TypeFor[rings](), map[string]string{"sq_head": "sqHead", "sq_tail": "sqTail", "cq_head": "cqHead", "cq_tail": "cqTail",
		"sq_mask": "sqMask", "cq_mask": "cqMask", "sq_entries": "sqEntries", "cq_entries": "cqEntries", "sq_flags": "sqFlags"}},
	{"gio_cqe", reflect.TypeFor[completion](), map[string]string{"user_data": "user"}},
	{"gio_sqe", reflect.TypeFor[submission](), map[string]string{"user_data": "user"}},
	{"gio_ioctx", reflect.TypeFor[IOCTX](), map[string]string{"address": "Address", "length": "Length", "id": "ID", "offset": "Offset", "bytes": "Bytes", "file": "File"}},
	{"gio_iocb", reflect.TypeFor[iocb](), map[string]string{"num_ioctx": "num", "event_word": "eventWord", "event_value": "eventValue",
		"first_result": "firstResult", "first_failed": "firstFailed"}},
}

const goldenLayout = "testdata/layout.txt"

// TestLayout: the Go structs have the golden offsets, and so have those of gio.h.
func TestLayout(t *testing.T) {
	golden, err := os.ReadFile(goldenLayout)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(golden)) {
		var name string
		var want uintptr
		if _, err := fmt.Sscan(line, &name, &want); err != nil {
			t.Fatal(err)
		}
		if got := goOffset(t, name); got != want {
			t.Errorf("%s is %d in Go, want %d", name, got, want)
		}
	}
	program := build(t, "layout.c")
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, golden) {
		t.Errorf("gio.h has another layout than %s:\n%s", goldenLayout, out)
	}
}

// goOffset is the size of a struct, or the offset of a field, by gio.h's names.
func goOffset(t *testing.T, name string) uintptr {
	s, field, ok := strings.Cut(name, ".")
	for _, c := range cNames {
		if c.name != s {
			continue
		}
		if !ok {
			return c.of.Size()
		}
		if other := c.fields[field]; other != "" {
			field = other
		}
		if f, ok := c.of.FieldByName(field); ok {
			return f.Offset
		}
	}
	t.Errorf("%s is not in Go", name)
	return 0
}

// build compiles a program of testdata; the test skips without a compiler.
func build(t *testing.T, name string, flags ...string) string {
	t.Helper()
	cc := testneed.Program(t, "gcc", "apt-get install gcc")
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(name, ".c"))
	args := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "testdata/" + name, "-o", program, "-lpthread"}, flags...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// sample is a region of two IOCBs of four, one of which is issued; no engine.
func sample(t *testing.T) *region {
	t.Helper()
	g := newGeometry(2, 4)
	m, err := newMemory("", g.bytes(), true)
	if err != nil {
		t.Fatal(err)
	}
	r := newRegion(g, m.mem)
	r.describe([]buffer{{0x7f0000000000, BufferBytes}, {0x7f0040000000, 0x10000}}, 3)
	q := newQueue(r, nil, small)
	got := get(t, q, 2, &Event{Word: 3, Value: 0x01020304})
	got[0].Ctx[0] = IOCTX{Address: 0x20000, Length: 0x20000, ID: 0, Offset: 0x123456000, Bytes: 0x20000, File: 2}
	got[0].Ctx[1] = IOCTX{Address: 0x1000, Length: 0x3000, ID: 1, Offset: 0x1000, Bytes: 0x2000, File: 1}
	got[0].Set(Write, 2)
	issue(t, q, 2, got[0].ID)
	return r
}

// dump has the lines of 16 bytes that are not all 0.
func dump(mem []byte) string {
	var b strings.Builder
	for i := 0; i < len(mem); i += 16 {
		if line := mem[i : i+16]; !bytes.Equal(line, make([]byte, 16)) {
			fmt.Fprintf(&b, "%05x  % x\n", i, line)
		}
	}
	return b.String()
}

// TestGoldenBytes: a region with one issued IOCB is what it always was, and what
// gio_prepare of gio.h makes of it.
func TestGoldenBytes(t *testing.T) {
	r := sample(t)
	golden, err := os.ReadFile("testdata/region.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(r.mem); got != string(golden) {
		t.Errorf("the bytes of a region are others:\n%s", got)
	}
	for i := range r.slots[0].sqes {
		r.slots[0].sqes[i] = submission{}
	}
	name := filepath.Join(t.TempDir(), "region")
	if err := os.WriteFile(name, r.mem, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(build(t, "layout.c"), name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	made, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got := dump(made); got != string(golden) {
		t.Errorf("gio_prepare makes other bytes:\n%s", got)
	}
}

func TestFacts(t *testing.T) {
	for f, want := range map[Facts]int{
		H100:        2048,
		{2, 48, 32}: 1024, // 1,536, and the kernel's rings are powers of two
		{8, 64, 32}: MaxIOCTX,
		{1, 1, 2}:   1,
		small:       16,
		{0, 64, 32}: 0,
	} {
		if got := f.NumIOCTX(); got != want {
			t.Errorf("%+v: %d, want %d", f, got, want)
		}
	}
}

// TestRegionOfOthers: what is no region of this build is refused.
func TestRegionOfOthers(t *testing.T) {
	for name, change := range map[string]func(h *header){
		"":             func(*header) {},
		"magic":        func(h *header) { h.magic++ },
		"version":      func(h *header) { h.version = 2 },
		"no depth":     func(h *header) { h.depth = 0 },
		"depth":        func(h *header) { h.depth = 65 },
		"IOCTXs":       func(h *header) { h.numIOCTX = 3 },
		"many IOCTXs":  func(h *header) { h.numIOCTX = 1 << 31 },
		"slot":         func(h *header) { h.slotBytes += pageBytes },
		"entries":      func(h *header) { h.sqesOffset = 0 },
		"IOCB":         func(h *header) { h.iocbOffset++ },
		"length":       func(h *header) { h.bytes++ },
		"many buffers": func(h *header) { h.buffers = MaxBuffers + 1 },
	} {
		r := sample(t)
		change(r.h)
		if _, ok := geometryOf(r.h, len(r.mem)); (ok && r.learn()) != (name == "") {
			t.Errorf("%s: %v", name, ok)
		}
	}
	r := sample(t)
	if _, ok := geometryOf(r.h, len(r.mem)-pageBytes); ok {
		t.Error("a region that is cut off")
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := OpenDevice(f); err == nil {
		t.Error("a device over /dev/null")
	}
	if unsafe.Sizeof(header{}) != pageBytes {
		t.Error("the header is not a page")
	}
}

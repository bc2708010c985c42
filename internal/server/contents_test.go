package server

import (
	"bytes"
	"strings"
	"testing"

	"cascadekv/cascade"
	"cascadekv/dht/directory"
)

// TestReadByID: the commands that read take ids in the namespace of contents; those that
// write refuse it, or change nothing.
func TestReadByID(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	p, ns := randomBytes(3, 50_000), directory.Contents
	id := e.do("CASCADE.PUT", "k", string(p), "NS", "a", "PARENT", "before").Text()
	e.do("CASCADE.PUT", "k", string(p), "NS", "b")
	if got := e.do("CASCADE.GET", "NS", ns, id); !bytes.Equal(got.Str, p) {
		t.Errorf("GET: %d bytes", len(got.Str))
	}
	for what, want := range map[string]string{"id": id, "size": "50000", "refs": "2", "parent": "", "depth": "0", "pttl": "-1"} {
		if got := e.do("CASCADE.STAT", ns, id).Field(what).Text(); got != want {
			t.Errorf("STAT: %s is %q, want %q", what, got, want)
		}
	}
	if got := e.do("CASCADE.PROBE", ns, id, id[1:]+"0").Field("hits").Int; got != 1 {
		t.Errorf("PROBE: %d hits, want 1", got)
	}
	if got := e.do("CASCADE.CONTAINS", ns, id, "k", ""); !bytes.Equal(got.Str, []byte{1, 0, 0}) {
		t.Errorf("CONTAINS: %v", got.Str)
	}
	e.expect(e.views(ns, id)[0], p)
	if got := e.do("CASCADE.PIN", ns, id).Int + e.do("CASCADE.UNPIN", ns, id).Int; got != 2 {
		t.Errorf("PIN and UNPIN: %d", got)
	}
	if got := e.do("CASCADE.GET", "NS", ns, "k"); !got.Null() {
		t.Errorf("GET of what is no id: %+v", got)
	}
	if got := e.do("CASCADE.ALIAS", "alias", id, "NS", "c", "PARENT", "k", "PX", "60000"); got.Text() != id {
		t.Errorf("ALIAS: %+v", got)
	}
	stat := e.do("CASCADE.STAT", "c", "alias")
	if stat.Field("refs").Int != 3 || stat.Field("parent").Text() != "k" || stat.Field("pttl").Int <= 0 {
		t.Errorf("STAT of an alias: %+v", stat)
	}
	if got := e.do("CASCADE.ALIAS", "alias", "0123456789abcdef0123456789abcdef"); !got.Null() {
		t.Errorf("ALIAS of what nobody has: %+v", got)
	}
	for _, bad := range [][]string{{"CASCADE.ALIAS", "alias", "k"}, {"CASCADE.ALIAS", "alias", id, "NS", ns}, {"CASCADE.ALIAS", "alias", id, "COLOUR"}, {"CASCADE.ALIAS", "", id}} {
		if _, err := e.Do(bad...); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, err := e.Do("CASCADE.PUT", id, "x", "NS", ns); err == nil {
		t.Error("a PUT under an id")
	}
	if got := e.do("CASCADE.DEL", ns, id).Int; got != 0 {
		t.Errorf("DEL: %d", got)
	}
	for _, refused := range [][]string{{"CASCADE.CLEAR", ns}, {"CASCADE.LAYOUT", ns, "BYTES", "100"}} {
		if _, err := e.Do(refused...); err == nil || !strings.Contains(err.Error(), cascade.ErrBadEntry.Error()) {
			t.Errorf("%q: %v", refused, err)
		}
	}
	if got := e.do("CASCADE.LAYOUT", ns); !got.Null() {
		t.Errorf("LAYOUT: %+v", got)
	}
	if got := e.do("CASCADE.SCAN", ns, "0").Elems[1]; len(got.Elems) != 0 {
		t.Errorf("SCAN: %+v", got)
	}
	if got := e.do("CASCADE.GET", "NS", "a", "k"); !bytes.Equal(got.Str, p) {
		t.Errorf("GET by name: %d bytes", len(got.Str))
	}
}

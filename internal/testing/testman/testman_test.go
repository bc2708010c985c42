package testman

import "testing"

func TestRender(t *testing.T) {
	const page = ".TH X 1 2026-01-01 X X\n.SH NAME\nx \\- a page\n.SH DESCRIPTION\n\\fBsome   words\\fP\nand\nmore\n"
	const want = "X(1) X X(1) NAME x - a page DESCRIPTION some words and more X 2026-01-01 X(1)"
	if got := Render(t, "x.1", []byte(page)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

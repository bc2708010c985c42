package catalogue

import (
	"slices"
	"testing"

	"cascadekv/tiers"
)

// TestSearchOfAPart: a search takes each file of a part once. One that is asked for while another runs goes through the files
// anew if one went meanwhile, once the other has come to its end.
func TestSearchOfAPart(t *testing.T) {
	p := tiers.Part{Rank: 1, Incarnation: 7}
	files := []uint64{5, 1, 4, 2, 3}
	rounds := func(l *lost, meanwhile func(round int)) (read []uint64) {
		for round := range 12 {
			read = append(read, l.more(p, files, 2)...)
			meanwhile(round)
		}
		return read
	}
	one := []uint64{1, 2, 3, 4, 5}
	two := append(slices.Clone(one), one...)
	for name, c := range map[string]struct {
		meanwhile func(l *lost, round int)
		want      []uint64
	}{
		"nothing happens": {func(*lost, int) {}, one},
		"asked for again": {func(l *lost, round int) { l.begin(p) }, one},
		"a file goes":     {func(l *lost, round int) { l.forget() }, one},
		"a file goes, and asked for": {func(l *lost, round int) {
			if round == 1 {
				l.forget()
				l.begin(p)
			}
		}, two},
		"asked for at the end": {func(l *lost, round int) {
			if round == 3 {
				l.forget()
				l.begin(p)
			}
		}, two},
		"files go twice, and asked for each time": {func(l *lost, round int) {
			if round < 2 {
				l.forget()
				l.begin(p)
			}
		}, two},
	} {
		t.Run(name, func(t *testing.T) {
			var l lost
			if l.more(p, files, 2) != nil {
				t.Fatal("it reads files that nobody asked for")
			}
			l.begin(p)
			if got := rounds(&l, func(round int) { c.meanwhile(&l, round) }); !slices.Equal(got, c.want) {
				t.Errorf("it reads %v, want %v", got, c.want)
			}
		})
	}
}

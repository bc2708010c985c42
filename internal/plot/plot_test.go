package plot

import (
	"strings"
	"testing"
)

func TestScaleHoldsItsValue(t *testing.T) {
	for _, most := range []float64{0, 0.00005, 0.013, 0.1, 0.3664, 0.4, 0.6, 0.93, 1} {
		if top, step := Scale(most); top < most || top > most+step && most > 0 || top/step > 7 {
			t.Errorf("scale of %v ends at %v in steps of %v", most, top, step)
		}
	}
}

func TestPercent(t *testing.T) {
	for got, want := range map[string]string{Percent(0.25, 0.05): "25 %", Percent(0.025, 0.005): "2.5 %", Percent(0.5, 0.25): "50 %"} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestPage: what its user writes is text in it, and geometry is not.
func TestPage(t *testing.T) {
	p := New("a < b", 100, 100, 10)
	p.AddCurve([][2]float64{{0, 0}, {0.5, 1e-9}, {1, 1}}, "r0", "1 < 2")
	var out strings.Builder
	err := Page(`{{template "style" .}}{{template "plot" .Plot}}{{template "rows" .Rows}}`).Execute(&out, map[string]any{"Plot": p, "Rows": [][]string{{"<head>"}, {"x"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<style>", ` d="M10,66 L43,66 L76,10"`, "<title>1 &lt; 2</title>", "<th>&lt;head&gt;</th>", "<td>x</td>"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

package answers

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
)

// TestAdvice holds the bytes of an answer, to clients of before and to those that asked by words.
func TestAdvice(t *testing.T) {
	a := cascade.Advice{
		ProbeResult: cascade.ProbeResult{
			Hits: 3, Bytes: 300, Tiers: map[string]int{"shm": 2, "lustre": 1},
			Runs: []cascade.Run{{Tier: "shm", Hits: 2, Bytes: 200, LoadUS: 10}, {Tier: "lustre", Hits: 1, Bytes: 100, LoadUS: 1500}},
		},
		Blocks: 2, Tokens: 32, Load: 10 * time.Microsecond, PerBlock: 700 * time.Microsecond,
	}
	fields := `$4 hits :3 $5 bytes :300 $5 tiers *4 $6 lustre :1 $3 shm :2 $7 load_us :1500 ` +
		`$4 runs *2 *4 $3 shm :2 :200 :10 *4 $6 lustre :1 :100 :1500 $6 blocks :2 $9 blocks_us :10 $8 block_us :700 `
	for byWords, want := range map[bool]string{false: "*16 " + fields, true: "*18 " + fields + "$11 load_tokens :32 "} {
		var out bytes.Buffer
		var w resp.Writer
		Advice(&w, &a, byWords)
		if err := w.Flush(&out); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(out.String(), "\r\n", " "); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}

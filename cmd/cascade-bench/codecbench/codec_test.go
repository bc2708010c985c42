package codecbench

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

func TestCodec(t *testing.T) {
	res, err := Run(context.Background(), Options{Sizes: []int{64 << 10, 128 << 10}, Total: 512 << 10, Rounds: 1, Budget: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	auto := map[string]string{dataBF16: "shuffle2+zstd", dataRandom: "none", dataZero: "zstd"} // fp16 is a close call
	if len(res.Settings) != 2*4 || len(res.Shuffle) != 2 || res.Ratio < 1.2 {
		t.Errorf("%d settings, %d strides, ratio %v", len(res.Settings), len(res.Shuffle), res.Ratio)
	}
	for _, s := range res.Settings {
		if s.Data != dataFP16 && s.Auto != auto[s.Data] {
			t.Errorf("%s in blocks of %d: auto chose %s, want %s", s.Data, s.Bytes, s.Auto, auto[s.Data])
		}
		for _, c := range s.Codecs {
			if c.Ratio < 1 || c.PageRatio < 1 || c.EncodeGBps <= 0 || (c.Encoded > 0) != (c.Ratio > 1) || (c.Encoded > 0) != (c.DecodeGBps > 0) {
				t.Errorf("%s in blocks of %d: %+v", s.Data, s.Bytes, c)
			}
		}
	}
}

func TestCodecChecksItsOptions(t *testing.T) {
	for _, o := range []Options{{Sizes: []int{100}}, {Sizes: []int{1 << 30}}, {Rounds: -1}, {Budget: -1}} {
		if _, err := Run(context.Background(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestHalfFloats(t *testing.T) {
	for name, c := range map[string]struct {
		v          float64
		bf16, fp16 uint16
	}{
		"one":          {1, 0x3f80, 0x3c00},
		"minus two":    {-2, 0xc000, 0xc000},
		"zero":         {0, 0, 0},
		"tie to even":  {1 + 1.0/256, 0x3f80, 0x3c04},
		"tie upwards":  {1 + 3.0/256, 0x3f82, 0x3c0c},
		"small":        {math.Ldexp(1, -20), 0x3580, 0},
		"minus 1 / 10": {-0.1, 0xbdcd, 0xae66},
	} {
		t.Run(name, func(t *testing.T) {
			if got := bf16Of(c.v); got != c.bf16 {
				t.Errorf("bf16 %#04x, want %#04x", got, c.bf16)
			}
			if got := fp16Of(c.v); got != c.fp16 {
				t.Errorf("fp16 %#04x, want %#04x", got, c.fp16)
			}
		})
	}
}

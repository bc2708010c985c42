package cascade

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// atOnce is how many subtests that are parallel run at once: they wait for ticks, timeouts and partitions of
// simulated worlds, not for a processor.
const atOnce = 8

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := flag.Set(f.Name, fmt.Sprint(atOnce)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

package plan

// Prices of the Tutti paper, section 4.3, in dollars an hour.
const (
	GPUPrice  = 5        // of an H100
	DRAMPrice = 0.0088   // of a GB
	SSDPrice  = 0.000082 // of a GB of NVMe
)

// gigabyte is the GB of prices.
const gigabyte = 1e9

// Storage is room that is paid for by its size.
type Storage struct {
	Bytes            int64
	DollarsPerGBHour float64
}

// DollarsPerHour is the numerator of Tutti's formula (1): the price of GPUs and of storage.
func DollarsPerHour(gpus int, gpuPrice float64, storage ...Storage) float64 {
	dollars := float64(gpus) * gpuPrice
	for _, s := range storage {
		dollars += float64(s.Bytes) / gigabyte * s.DollarsPerGBHour
	}
	return dollars
}

// DollarsPerMillion is Tutti's formula (1): what a million tokens cost.
func DollarsPerMillion(dollarsPerHour, tokensPerHour float64) float64 {
	return dollarsPerHour / tokensPerHour * 1e6
}

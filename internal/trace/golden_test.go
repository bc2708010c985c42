package trace

// The first bytes of payload 42, computed in Python from the definition.
var golden = []byte{
	0xac, 0x04, 0x3a, 0x42, 0x7b, 0x79, 0x40, 0xbd, 0xab, 0xd9,
	0x5d, 0xcd, 0x17, 0xa5, 0x74, 0x40, 0xe0, 0x36, 0x37, 0xdf,
}

// SHA-256 of synthesised traces.
const (
	goldenDefaults = "614776cef3ff014b8c859708b15f5f443ba36c155610c0902771e9ab84cdb785"
	goldenSeed     = "8084c6b727bb29ccc944c3e91d668b2c35c746dcced8cd75de98378f207ab647"
	goldenAll      = "dd0801fa40dea9801bec43f6626dca894279e5bddf8c8cef77b6c06f6266db99"
)

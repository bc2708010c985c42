#include "textflag.h"

// func extendedFeatures() uint32
TEXT ·extendedFeatures(SB), NOSPLIT, $0-4
	MOVL $0, AX
	CPUID
	MOVL $0, R8
	CMPL AX, $7
	JLT  done
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	MOVL CX, R8
done:
	MOVL R8, ret+0(FP)
	RET

// STEP moves acc one block ahead, where it meets the next 32 bytes.
#define STEP(offset, acc) \
	VPCLMULQDQ $0x00, Y8, acc, Y9; \
	VPCLMULQDQ $0x11, Y8, acc, Y10; \
	VPXOR      offset(SI), Y9, Y9; \
	VPXOR      Y9, Y10, acc

// COPY is STEP, and writes the 32 bytes past the caches.
#define COPY(offset, acc) \
	VMOVDQU    offset(SI), Y11; \
	VPCLMULQDQ $0x00, Y8, acc, Y9; \
	VPCLMULQDQ $0x11, Y8, acc, Y10; \
	VMOVNTDQ   Y11, offset(DI); \
	VPXOR      Y11, Y9, Y9; \
	VPXOR      Y9, Y10, acc

// LOAD takes the first block of the message in.
#define LOAD \
	VMOVDQU (SI), Y0; \
	VMOVDQU 32(SI), Y1; \
	VMOVDQU 64(SI), Y2; \
	VMOVDQU 96(SI), Y3; \
	VMOVDQU 128(SI), Y4; \
	VMOVDQU 160(SI), Y5; \
	VMOVDQU 192(SI), Y6; \
	VMOVDQU 224(SI), Y7

// BEGIN adds the CRC of what came before, in AX, to the first block, and sets
// the distance of STEP.
#define BEGIN \
	VMOVD          AX, X9; \
	VPXOR          Y9, Y0, Y0; \
	VBROADCASTI128 (DX), Y8

// JOIN moves from the distance in Y8 and adds it to onto.
#define JOIN(from, onto) \
	VPCLMULQDQ $0x00, Y8, from, Y9; \
	VPCLMULQDQ $0x11, Y8, from, Y10; \
	VPXOR      Y9, onto, onto; \
	VPXOR      Y10, onto, onto

// FINISH leaves the remainder of Y0 to Y7 in AX.
#define FINISH \
	VBROADCASTI128 32(DX), Y8; \
	JOIN(Y0, Y1); \
	JOIN(Y1, Y2); \
	JOIN(Y2, Y3); \
	JOIN(Y3, Y4); \
	JOIN(Y4, Y5); \
	JOIN(Y5, Y6); \
	JOIN(Y6, Y7); \
	DIVIDE

// DIVIDE leaves the remainder of Y7 in AX. The lower 128 bits come first in the
// message; the CRC instruction divides the last 128.
#define DIVIDE \
	VMOVDQU      48(DX), X8; \
	VEXTRACTI128 $1, Y7, X6; \
	VPCLMULQDQ   $0x00, X8, X7, X9; \
	VPCLMULQDQ   $0x11, X8, X7, X10; \
	VPXOR        X9, X6, X6; \
	VPXOR        X10, X6, X6; \
	MOVL         $0, AX; \
	VMOVQ        X6, BX; \
	CRC32Q       BX, AX; \
	VPEXTRQ      $1, X6, BX; \
	CRC32Q       BX, AX; \
	VZEROUPPER

// func fold256(crc uint32, p *byte, blocks int, k *[4]multipliers) uint32
//
// Y0 to Y7 hold a block's worth of message that is congruent to all before it.
TEXT ·fold256(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ blocks+16(FP), CX
	MOVQ k+24(FP), DX
	LOAD
	BEGIN

loop:
	ADDQ $256, SI
	DECQ CX
	JZ   finish
	STEP(0, Y0)
	STEP(32, Y1)
	STEP(64, Y2)
	STEP(96, Y3)
	STEP(128, Y4)
	STEP(160, Y5)
	STEP(192, Y6)
	STEP(224, Y7)
	JMP  loop

finish:
	FINISH
	MOVL AX, ret+32(FP)
	RET

// func foldCopy256(crc uint32, dst, p *byte, blocks int, k *[4]multipliers) uint32
TEXT ·foldCopy256(SB), NOSPLIT, $0-44
	MOVL crc+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ p+16(FP), SI
	MOVQ blocks+24(FP), CX
	MOVQ k+32(FP), DX
	LOAD
	VMOVNTDQ Y0, (DI)
	VMOVNTDQ Y1, 32(DI)
	VMOVNTDQ Y2, 64(DI)
	VMOVNTDQ Y3, 96(DI)
	VMOVNTDQ Y4, 128(DI)
	VMOVNTDQ Y5, 160(DI)
	VMOVNTDQ Y6, 192(DI)
	VMOVNTDQ Y7, 224(DI)
	BEGIN

loop:
	ADDQ $256, SI
	ADDQ $256, DI
	DECQ CX
	JZ   finish
	COPY(0, Y0)
	COPY(32, Y1)
	COPY(64, Y2)
	COPY(96, Y3)
	COPY(128, Y4)
	COPY(160, Y5)
	COPY(192, Y6)
	COPY(224, Y7)
	JMP  loop

finish:
	SFENCE
	FINISH
	MOVL AX, ret+40(FP)
	RET

// The same with AVX-512: Z0 to Z3 hold the block.

// STEP5 is STEP, of 64 bytes.
#define STEP5(offset, acc) \
	VPCLMULQDQ $0x00, Z8, acc, Z9; \
	VPCLMULQDQ $0x11, Z8, acc, acc; \
	VPTERNLOGQ $0x96, offset(SI), Z9, acc

// COPY5 is COPY, of 64 bytes.
#define COPY5(offset, acc) \
	VMOVDQU64  offset(SI), Z11; \
	VPCLMULQDQ $0x00, Z8, acc, Z9; \
	VPCLMULQDQ $0x11, Z8, acc, acc; \
	VMOVNTDQ   Z11, offset(DI); \
	VPTERNLOGQ $0x96, Z11, Z9, acc

#define LOAD5 \
	VMOVDQU64 (SI), Z0; \
	VMOVDQU64 64(SI), Z1; \
	VMOVDQU64 128(SI), Z2; \
	VMOVDQU64 192(SI), Z3

#define BEGIN5 \
	VMOVD           AX, X9; \
	VPXORQ          Z9, Z0, Z0; \
	VBROADCASTI32X4 (DX), Z8

#define JOIN5(from, onto) \
	VPCLMULQDQ $0x00, Z8, from, Z9; \
	VPCLMULQDQ $0x11, Z8, from, Z10; \
	VPTERNLOGQ $0x96, Z10, Z9, onto

// FINISH5 leaves the remainder of Z0 to Z3 in AX.
#define FINISH5 \
	VBROADCASTI32X4 16(DX), Z8; \
	JOIN5(Z0, Z1); \
	JOIN5(Z1, Z2); \
	JOIN5(Z2, Z3); \
	VBROADCASTI128  32(DX), Y8; \
	VEXTRACTI64X4   $1, Z3, Y7; \
	JOIN(Y3, Y7); \
	DIVIDE

// func fold512(crc uint32, p *byte, blocks int, k *[4]multipliers) uint32
TEXT ·fold512(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ blocks+16(FP), CX
	MOVQ k+24(FP), DX
	LOAD5
	BEGIN5

loop:
	ADDQ $256, SI
	DECQ CX
	JZ   finish
	STEP5(0, Z0)
	STEP5(64, Z1)
	STEP5(128, Z2)
	STEP5(192, Z3)
	JMP  loop

finish:
	FINISH5
	MOVL AX, ret+32(FP)
	RET

// func foldCopy512(crc uint32, dst, p *byte, blocks int, k *[4]multipliers) uint32
TEXT ·foldCopy512(SB), NOSPLIT, $0-44
	MOVL crc+0(FP), AX
	MOVQ dst+8(FP), DI
	MOVQ p+16(FP), SI
	MOVQ blocks+24(FP), CX
	MOVQ k+32(FP), DX
	LOAD5
	VMOVNTDQ Z0, (DI)
	VMOVNTDQ Z1, 64(DI)
	VMOVNTDQ Z2, 128(DI)
	VMOVNTDQ Z3, 192(DI)
	BEGIN5

loop:
	ADDQ $256, SI
	ADDQ $256, DI
	DECQ CX
	JZ   finish
	COPY5(0, Z0)
	COPY5(64, Z1)
	COPY5(128, Z2)
	COPY5(192, Z3)
	JMP  loop

finish:
	SFENCE
	FINISH5
	MOVL AX, ret+40(FP)
	RET

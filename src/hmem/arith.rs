//! Arithmetic of atomics: each `enum fi_op` on one element of each `enum fi_datatype`
//! (fi_atomic(3)).
//!
//! An [`Element`] is a function from the old value, the operand and the compare value to the new
//! value, all as bytes in memory order. fi_atomicvalid(3) reports which functions exist: integers
//! have every operation, real numbers all but the bitwise ones, complex numbers those that need no
//! order.

use crate::types::*;

/// Longest element, bytes: a complex long double.
pub const ELEMENT_MAX: usize = 32;

/// Computes a new value of one element; see the module text.
pub type Element = fn(old: &[u8], src: &[u8], cmp: &[u8]) -> [u8; ELEMENT_MAX];

/// Size of an element, bytes; `None` for an unknown type.
pub fn size_of(datatype: fi_datatype) -> Option<usize> {
    Some(match datatype {
        FI_INT8 | FI_UINT8 | FI_FLOAT8_E4M3 | FI_FLOAT8_E5M2 => 1,
        FI_INT16 | FI_UINT16 | FI_FLOAT16 | FI_BFLOAT16 => 2,
        FI_INT32 | FI_UINT32 | FI_FLOAT => 4,
        FI_INT64 | FI_UINT64 | FI_DOUBLE | FI_FLOAT_COMPLEX => 8,
        FI_DOUBLE_COMPLEX | FI_LONG_DOUBLE | FI_INT128 | FI_UINT128 => 16,
        FI_LONG_DOUBLE_COMPLEX => 32,
        _ => return None,
    })
}

/// A value that converts from and to bytes in memory order.
trait AtomicValue: Copy + PartialEq {
    fn get(b: &[u8]) -> Self;
    fn put(self) -> [u8; ELEMENT_MAX];
    fn sum(self, o: Self) -> Self;
    fn difference(self, o: Self) -> Self;
    fn product(self, o: Self) -> Self;
    fn truth(self) -> bool;
    fn from_truth(t: bool) -> Self;
}

fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    b.first_chunk::<N>().copied().unwrap_or([0; N])
}

fn spread(b: &[u8]) -> [u8; ELEMENT_MAX] {
    let mut out = [0; ELEMENT_MAX];
    if let Some(to) = out.get_mut(..b.len()) {
        to.copy_from_slice(b);
    }
    out
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl AtomicValue for $t {
            fn get(b: &[u8]) -> Self { <$t>::from_ne_bytes(array(b)) }
            fn put(self) -> [u8; ELEMENT_MAX] { spread(&self.to_ne_bytes()) }
            fn sum(self, o: Self) -> Self { self.wrapping_add(o) }
            fn difference(self, o: Self) -> Self { self.wrapping_sub(o) }
            fn product(self, o: Self) -> Self { self.wrapping_mul(o) }
            fn truth(self) -> bool { self != 0 }
            fn from_truth(t: bool) -> Self { t as $t }
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64, i128, u128);

macro_rules! reals {
    ($($t:ty),*) => {$(
        impl AtomicValue for $t {
            fn get(b: &[u8]) -> Self { <$t>::from_ne_bytes(array(b)) }
            fn put(self) -> [u8; ELEMENT_MAX] { spread(&self.to_ne_bytes()) }
            fn sum(self, o: Self) -> Self { self + o }
            fn difference(self, o: Self) -> Self { self - o }
            fn product(self, o: Self) -> Self { self * o }
            fn truth(self) -> bool { self != 0.0 }
            fn from_truth(t: bool) -> Self { if t { 1.0 } else { 0.0 } }
        }
    )*};
}
reals!(f32, f64);

/// A real number of 16 or 8 bits: one sign bit, `E` exponent bits, the rest fraction. With
/// `FINITE` there is no infinity, and only the all-ones pattern is not a number (E4M3).
#[derive(Clone, Copy)]
struct MiniFloat<const BYTES: usize, const E: u32, const FINITE: bool>(f32);

impl<const B: usize, const E: u32, const FINITE: bool> MiniFloat<B, E, FINITE> {
    const FRACTION: u32 = B as u32 * 8 - 1 - E;
    const BIAS: i32 = (1 << (E - 1)) - 1;

    fn decode(bits: u32) -> f32 {
        let sign = if bits >> (B * 8 - 1) & 1 == 1 {
            -1.0
        } else {
            1.0
        };
        let exp = bits >> Self::FRACTION & ((1 << E) - 1);
        let frac = bits & ((1 << Self::FRACTION) - 1);
        let top = (1 << E) - 1;
        let all = (1 << Self::FRACTION) - 1;
        if exp == top && (!FINITE || frac == all) {
            return if frac == 0 {
                sign * f32::INFINITY
            } else {
                f32::NAN
            };
        }
        let unit = 2f64.powi(-(Self::FRACTION as i32));
        let value = if exp == 0 {
            f64::from(frac) * unit * 2f64.powi(1 - Self::BIAS)
        } else {
            (1.0 + f64::from(frac) * unit) * 2f64.powi(exp as i32 - Self::BIAS)
        };
        sign * value as f32
    }

    /// Rounds to the nearest, ties to even.
    fn encode(v: f32) -> u32 {
        let sign = u32::from(v.is_sign_negative()) << (B * 8 - 1);
        let top: u32 = (1 << E) - 1;
        let all: u32 = (1 << Self::FRACTION) - 1;
        let largest = if FINITE {
            top << Self::FRACTION | (all - 1)
        } else {
            ((top - 1) << Self::FRACTION) | all
        };
        if v.is_nan() {
            return sign | top << Self::FRACTION | all;
        }
        let a = f64::from(v.abs());
        if a == 0.0 {
            return sign;
        }
        let exp = (a.log2().floor() as i32).clamp(1 - Self::BIAS, Self::BIAS + 1);
        let steps = a / 2f64.powi(exp - Self::FRACTION as i32);
        let near = steps.round_ties_even();
        // A carry out of the fraction raises the exponent by itself.
        let base = ((exp + Self::BIAS - 1).max(0) as u64) << Self::FRACTION;
        let bits = base.saturating_add(near as u64);
        if bits > u64::from(largest) {
            return sign
                | if FINITE {
                    top << Self::FRACTION | all
                } else {
                    top << Self::FRACTION
                };
        }
        sign | bits as u32
    }
}

impl<const B: usize, const E: u32, const FINITE: bool> PartialEq for MiniFloat<B, E, FINITE> {
    fn eq(&self, o: &Self) -> bool {
        self.0 == o.0
    }
}

impl<const B: usize, const E: u32, const FINITE: bool> PartialOrd for MiniFloat<B, E, FINITE> {
    fn partial_cmp(&self, o: &Self) -> Option<std::cmp::Ordering> {
        self.0.partial_cmp(&o.0)
    }
}

impl<const B: usize, const E: u32, const FINITE: bool> AtomicValue for MiniFloat<B, E, FINITE> {
    fn get(b: &[u8]) -> Self {
        let mut four = [0u8; 4];
        if let (Some(to), Some(from)) = (four.get_mut(..B), b.get(..B)) {
            to.copy_from_slice(from);
        }
        MiniFloat(Self::decode(u32::from_le_bytes(four)))
    }
    fn put(self) -> [u8; ELEMENT_MAX] {
        let four = Self::encode(self.0).to_le_bytes();
        spread(four.get(..B).unwrap_or(&[]))
    }
    fn sum(self, o: Self) -> Self {
        MiniFloat(self.0 + o.0)
    }
    fn difference(self, o: Self) -> Self {
        MiniFloat(self.0 - o.0)
    }
    fn product(self, o: Self) -> Self {
        MiniFloat(self.0 * o.0)
    }
    fn truth(self) -> bool {
        self.0 != 0.0
    }
    fn from_truth(t: bool) -> Self {
        MiniFloat(if t { 1.0 } else { 0.0 })
    }
}

type Float16 = MiniFloat<2, 5, false>;
type Bfloat16 = MiniFloat<2, 8, false>;
type E4m3 = MiniFloat<1, 4, true>;
type E5m2 = MiniFloat<1, 5, false>;

/// A complex number: real part, imaginary part. `N` is the size of a part, bytes.
#[derive(Clone, Copy, PartialEq)]
struct Complex<V, const N: usize>(V, V);

impl<V: AtomicValue, const N: usize> AtomicValue for Complex<V, N> {
    fn get(b: &[u8]) -> Self {
        Complex(V::get(b), V::get(b.get(N..).unwrap_or(&[])))
    }
    fn put(self) -> [u8; ELEMENT_MAX] {
        let (mut out, im) = (self.0.put(), self.1.put());
        if let (Some(to), Some(from)) = (out.get_mut(N..2 * N), im.get(..N)) {
            to.copy_from_slice(from);
        }
        out
    }
    fn sum(self, o: Self) -> Self {
        Complex(self.0.sum(o.0), self.1.sum(o.1))
    }
    fn difference(self, o: Self) -> Self {
        Complex(self.0.difference(o.0), self.1.difference(o.1))
    }
    fn product(self, o: Self) -> Self {
        Complex(
            self.0.product(o.0).difference(self.1.product(o.1)),
            self.0.product(o.1).sum(self.1.product(o.0)),
        )
    }
    fn truth(self) -> bool {
        self.0.truth() || self.1.truth()
    }
    fn from_truth(t: bool) -> Self {
        Complex(V::from_truth(t), V::from_truth(false))
    }
}

/// A long double in x87 format: ten bytes of value in sixteen bytes of memory. Stable Rust has no
/// such type, so [`x87`] uses the processor's instructions.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct LongDouble([u8; 16]);

#[cfg(target_arch = "x86_64")]
mod x87 {
    use core::arch::asm;

    macro_rules! binary {
        ($name:ident, $op:literal) => {
            pub(crate) fn $name(a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
                let mut out = [0u8; 16];
                // SAFETY: both operands and the result are sixteen bytes, of which ten are read and
                // written; the two values pushed on the register stack are popped again.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{a}]",
                        "fld tbyte ptr [{b}]",
                        $op,
                        "fstp tbyte ptr [{out}]",
                        a = in(reg) &a, b = in(reg) &b, out = in(reg) &mut out,
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack)
                    );
                }
                out
            }
        };
    }
    binary!(add, "faddp st(1), st");
    binary!(sub, "fsubp st(1), st");
    binary!(mul, "fmulp st(1), st");

    /// Compares two values in full precision; `None` when they are unordered.
    pub(crate) fn compare(a: [u8; 16], b: [u8; 16]) -> Option<core::cmp::Ordering> {
        let (above, below, unordered): (u8, u8, u8);
        // SAFETY: as above; the comparison leaves one value on the register stack, which is popped.
        unsafe {
            asm!(
                "fld tbyte ptr [{b}]",
                "fld tbyte ptr [{a}]",
                "fucomip st, st(1)",
                "fstp st(0)",
                "seta {above}",
                "setb {below}",
                "setp {unordered}",
                a = in(reg) &a, b = in(reg) &b,
                above = out(reg_byte) above, below = out(reg_byte) below,
                unordered = out(reg_byte) unordered,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack)
            );
        }
        if unordered != 0 {
            None
        } else if above != 0 {
            Some(core::cmp::Ordering::Greater)
        } else if below != 0 {
            Some(core::cmp::Ordering::Less)
        } else {
            Some(core::cmp::Ordering::Equal)
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl PartialEq for LongDouble {
    fn eq(&self, o: &Self) -> bool {
        self.partial_cmp(o) == Some(std::cmp::Ordering::Equal)
    }
}

#[cfg(target_arch = "x86_64")]
impl PartialOrd for LongDouble {
    fn partial_cmp(&self, o: &Self) -> Option<std::cmp::Ordering> {
        x87::compare(self.0, o.0)
    }
}

#[cfg(target_arch = "x86_64")]
impl AtomicValue for LongDouble {
    fn get(b: &[u8]) -> Self {
        LongDouble(array(b))
    }
    fn put(self) -> [u8; ELEMENT_MAX] {
        spread(&self.0)
    }
    fn sum(self, o: Self) -> Self {
        LongDouble(x87::add(self.0, o.0))
    }
    fn difference(self, o: Self) -> Self {
        LongDouble(x87::sub(self.0, o.0))
    }
    fn product(self, o: Self) -> Self {
        LongDouble(x87::mul(self.0, o.0))
    }
    fn truth(self) -> bool {
        self != LongDouble([0; 16])
    }
    fn from_truth(t: bool) -> Self {
        // One: exponent bias 16383, explicit leading bit.
        let mut b = [0u8; 16];
        if t {
            b = [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0];
        }
        LongDouble(b)
    }
}

fn choose(old: &[u8], src: &[u8], take: bool) -> [u8; ELEMENT_MAX] {
    spread(if take { src } else { old })
}

/// Operations every type has.
fn any<V: AtomicValue>(op: fi_op) -> Option<Element> {
    Some(match op {
        FI_SUM => |o, s, _| V::get(o).sum(V::get(s)).put(),
        FI_DIFF => |o, s, _| V::get(o).difference(V::get(s)).put(),
        FI_PROD => |o, s, _| V::get(o).product(V::get(s)).put(),
        FI_LOR => |o, s, _| V::from_truth(V::get(o).truth() || V::get(s).truth()).put(),
        FI_LAND => |o, s, _| V::from_truth(V::get(o).truth() && V::get(s).truth()).put(),
        FI_LXOR => |o, s, _| V::from_truth(V::get(o).truth() != V::get(s).truth()).put(),
        FI_ATOMIC_READ => |o, _, _| spread(o),
        FI_ATOMIC_WRITE => |_, s, _| spread(s),
        FI_CSWAP => |o, s, c| choose(o, s, V::get(c) == V::get(o)),
        FI_CSWAP_NE => |o, s, c| choose(o, s, V::get(c) != V::get(o)),
        _ => return None,
    })
}

/// Operations of types with an order, and those of every type.
fn ordered<V: AtomicValue + PartialOrd>(op: fi_op) -> Option<Element> {
    Some(match op {
        FI_MIN => |o, s, _| choose(o, s, V::get(s) < V::get(o)),
        FI_MAX => |o, s, _| choose(o, s, V::get(s) > V::get(o)),
        FI_CSWAP_LE => |o, s, c| choose(o, s, V::get(c) <= V::get(o)),
        FI_CSWAP_LT => |o, s, c| choose(o, s, V::get(c) < V::get(o)),
        FI_CSWAP_GE => |o, s, c| choose(o, s, V::get(c) >= V::get(o)),
        FI_CSWAP_GT => |o, s, c| choose(o, s, V::get(c) > V::get(o)),
        _ => return any::<V>(op),
    })
}

fn bits(a: &[u8], b: &[u8], f: fn(u8, u8) -> u8) -> [u8; ELEMENT_MAX] {
    let mut out = [0; ELEMENT_MAX];
    for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
        *o = f(*a, *b);
    }
    out
}

/// Operations of integers, which have all.
fn integer<V: AtomicValue + PartialOrd>(op: fi_op) -> Option<Element> {
    Some(match op {
        FI_BOR => |o, s, _| bits(o, s, |a, b| a | b),
        FI_BAND => |o, s, _| bits(o, s, |a, b| a & b),
        FI_BXOR => |o, s, _| bits(o, s, |a, b| a ^ b),
        FI_MSWAP => |o, s, c| {
            let kept = bits(o, c, |o, c| o & !c);
            bits(&bits(s, c, |s, c| s & c), &kept, |a, b| a | b)
        },
        _ => return ordered::<V>(op),
    })
}

/// The function of an operation on a datatype, if there is one.
pub fn element(datatype: fi_datatype, op: fi_op) -> Option<Element> {
    match datatype {
        FI_INT8 => integer::<i8>(op),
        FI_UINT8 => integer::<u8>(op),
        FI_INT16 => integer::<i16>(op),
        FI_UINT16 => integer::<u16>(op),
        FI_INT32 => integer::<i32>(op),
        FI_UINT32 => integer::<u32>(op),
        FI_INT64 => integer::<i64>(op),
        FI_UINT64 => integer::<u64>(op),
        FI_INT128 => integer::<i128>(op),
        FI_UINT128 => integer::<u128>(op),
        FI_FLOAT => ordered::<f32>(op),
        FI_DOUBLE => ordered::<f64>(op),
        FI_FLOAT16 => ordered::<Float16>(op),
        FI_BFLOAT16 => ordered::<Bfloat16>(op),
        FI_FLOAT8_E4M3 => ordered::<E4m3>(op),
        FI_FLOAT8_E5M2 => ordered::<E5m2>(op),
        FI_FLOAT_COMPLEX => any::<Complex<f32, 4>>(op),
        FI_DOUBLE_COMPLEX => any::<Complex<f64, 8>>(op),
        #[cfg(target_arch = "x86_64")]
        FI_LONG_DOUBLE => ordered::<LongDouble>(op),
        #[cfg(target_arch = "x86_64")]
        FI_LONG_DOUBLE_COMPLEX => any::<Complex<LongDouble, 16>>(op),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<V: AtomicValue>(dt: fi_datatype, op: fi_op, old: V, src: V, cmp: V) -> V {
        let n = size_of(dt).unwrap();
        let (o, s, c) = (old.put(), src.put(), cmp.put());
        V::get(&element(dt, op).unwrap()(&o[..n], &s[..n], &c[..n])[..n])
    }

    #[test]
    fn integer_operations_wrap_and_swaps_compare() {
        assert_eq!(run(FI_INT8, FI_SUM, 127i8, 1, 0), -128);
        assert_eq!(run(FI_UINT128, FI_PROD, 3u128 << 100, 5, 0), 15u128 << 100);
        assert_eq!(run(FI_INT32, FI_MIN, 3i32, -4, 0), -4);
        assert_eq!(run(FI_UINT32, FI_MAX, 3u32, u32::MAX, 0), u32::MAX);
        assert_eq!(run(FI_INT64, FI_LXOR, 5i64, 0, 0), 1);
        assert_eq!(run(FI_UINT16, FI_MSWAP, 0x1234u16, 0xabcd, 0x0ff0), 0x1bc4);
        assert_eq!(run(FI_INT16, FI_CSWAP_LT, 5i16, 9, 4), 9);
        assert_eq!(run(FI_INT16, FI_CSWAP_LT, 5i16, 9, 5), 5);
        assert_eq!(run(FI_INT16, FI_DIFF, 5i16, 9, 5), -4);
    }

    #[test]
    fn reals_have_no_bitwise_operations_and_complex_ones_no_order() {
        assert_eq!(run(FI_DOUBLE, FI_PROD, 1.5f64, -2.0, 0.0), -3.0);
        for op in [FI_BOR, FI_BAND, FI_BXOR, FI_MSWAP] {
            assert!(element(FI_FLOAT, op).is_none());
        }
        assert!(element(FI_FLOAT_COMPLEX, FI_MIN).is_none());
        let z = run(
            FI_DOUBLE_COMPLEX,
            FI_PROD,
            Complex::<f64, 8>(1.0, 2.0),
            Complex(3.0, -1.0),
            Complex(0.0, 0.0),
        );
        assert_eq!((z.0, z.1), (5.0, 5.0));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn long_doubles_keep_their_precision() {
        let one = LongDouble::from_truth(true);
        let mut big = one;
        for _ in 0..63 {
            big = big.sum(big);
        }
        // A long double represents 2^63 + 1, a double does not.
        assert!(big.sum(one) > big);
        assert!(big.sum(one).difference(big) == one);
        assert!(run(FI_LONG_DOUBLE, FI_MIN, big, one, one) == one);
        let i = Complex::<LongDouble, 16>(LongDouble([0; 16]), one);
        let sq = run(FI_LONG_DOUBLE_COMPLEX, FI_PROD, i, i, i);
        assert!(sq.0.sum(one) == LongDouble([0; 16]));
    }

    #[test]
    fn reals_of_16_bits_decode_and_encode_to_the_same_bits() {
        for bits in 0..=u16::MAX {
            for (v, back) in [
                (
                    Float16::decode(bits.into()),
                    Float16::encode(Float16::decode(bits.into())),
                ),
                (
                    Bfloat16::decode(bits.into()),
                    Bfloat16::encode(Bfloat16::decode(bits.into())),
                ),
            ] {
                assert!(
                    v.is_nan() || back == u32::from(bits),
                    "{bits:#x} {v} {back:#x}"
                );
            }
        }
        for bits in 0..=u8::MAX {
            for (v, back) in [
                (
                    E4m3::decode(bits.into()),
                    E4m3::encode(E4m3::decode(bits.into())),
                ),
                (
                    E5m2::decode(bits.into()),
                    E5m2::encode(E5m2::decode(bits.into())),
                ),
            ] {
                assert!(
                    v.is_nan() || back == u32::from(bits),
                    "{bits:#x} {v} {back:#x}"
                );
            }
        }
        assert_eq!(Float16::decode(0x3c00), 1.0);
        assert_eq!(E4m3::decode(0x7e), 448.0);
        assert_eq!(Float16::encode(65520.0), 0x7c00);
    }
}

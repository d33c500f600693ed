// The three passes of a convolution, for one set of instructions: included once for each, inside a namespace
// that defines
//   Vector, kLanes         floats that one instruction takes
//   kTall                  accumulators of one tile, per vector of filters
//   Zero, Load, Store, Add, Scaled
//   Single, Half           operands of a product: one float, or two neighbouring bfloat16
// A word is a float, or the bits of two bfloat16.

// acc[p][v] += Σ over rows and steps of x[p * spacing] w[v], the work of all three passes.
// kSpacing 0: known at run time only.
template <class Op, int P, int V, int kSpacing>
inline void Accumulate(const Span& span, const Word* x, const Word* w, Vector (&acc)[P][V]) {
  const int64_t spacing = kSpacing ? kSpacing : span.spacing;
  for (int64_t row = 0; row < span.rows; ++row) {
    const Word* a = x + row * span.x_row;
    const Word* b = w + row * span.w_row;
    for (int64_t step = 0; step < span.steps; ++step) {
      typename Op::Operand weights[V];
      for (int v = 0; v < V; ++v) weights[v] = Op::Read(b + v * kLanes);
      for (int p = 0; p < P; ++p) {
        const typename Op::Operand value = Op::Spread(a[p * spacing]);
        for (int v = 0; v < V; ++v) acc[p][v] = Op::Times(acc[p][v], weights[v], value);
      }
      a += span.x_step;
      b += span.w_step;
    }
  }
}

// One tile of P x V vectors: out = scale acc + start, or out += scale acc.
template <class Op, int P, int V, int kSpacing>
void Tile(const Span& span, const Word* x, const Word* w, const Epilogue& end, const float* start, float* out) {
  Vector acc[P][V];
  for (int p = 0; p < P; ++p)
    for (int v = 0; v < V; ++v) acc[p][v] = Zero();
  Accumulate<Op, P, V, kSpacing>(span, x, w, acc);
  for (int p = 0; p < P; ++p) {
    for (int v = 0; v < V; ++v) {
      float* place = out + p * end.spacing + v * kLanes;
      const float* base = end.add ? place : start ? start + v * kLanes : nullptr;
      Store(place, Scaled(acc[p][v], end.scale, base ? Load(base) : Zero()));
    }
  }
}

template <class Op, int kSpacing>
struct Tiles {
  using Function = void (*)(const Span&, const Word*, const Word*, const Epilogue&, const float*, float*);

  template <int V, int... P>
  static Function Find(int64_t count, std::integer_sequence<int, P...>) {
    static constexpr Function all[] = {Tile<Op, P + 1, V, kSpacing>...};
    return all[count - 1];
  }

  // `count` places of x, `filters` outputs each.
  static void Run(const Span& span, int64_t count, int64_t filters, const Word* x, const Word* w,
                  const Epilogue& end, const float* start, float* out) {
    const int64_t parts = (count + kTall - 1) / kTall, vectors = filters / kLanes;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = count * part / parts, size = count * (part + 1) / parts - first;
      const Word* from = x + first * (kSpacing ? kSpacing : span.spacing);
      float* to = out + first * end.spacing;
      for (int64_t v = 0; v < vectors; v += 2) {
        const Function tile = vectors - v > 1 ? Find<2>(size, std::make_integer_sequence<int, kTall>())
                                              : Find<1>(size, std::make_integer_sequence<int, kTall>());
        tile(span, from, w + v * kLanes, end, start ? start + v * kLanes : nullptr, to + v * kLanes);
      }
    }
  }
};

inline uint16_t Rounded(float value) {  // to bfloat16, to the nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

inline uint16_t Rounded(uint8_t value) {  // exactly
  const float exact = value;
  uint32_t bits;
  std::memcpy(&bits, &exact, 4);
  return static_cast<uint16_t>(bits >> 16);
}

template <class T>
void ToHalves(const T* __restrict__ from, int64_t count, Bits* __restrict__ to) {
  for (int64_t i = 0; i < count; ++i) to[i] = Rounded(from[i]);
}

// Two rows of halves, number by number side by side; without a second one, zeros.
inline void ToPairs(const uint16_t* first, const uint16_t* second, int64_t count, Word* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t pair = first[i] | (second ? static_cast<uint32_t>(second[i]) << 16 : 0u);
    std::memcpy(to + i, &pair, 4);
  }
}

// Rounded rows that are kept until the next call in this thread.
template <class T>
const uint16_t* Halves(const T* from, int64_t count, std::vector<uint16_t>& scratch) {
  scratch.resize(count);
  ToHalves(from, count, scratch.data());
  return scratch.data();
}

// The words of an image, neighbouring halves being a word: itself where it has that form.
template <bool kPairs, class T>
const Word* Words(const T* image, int64_t count, std::vector<Word>& scratch) {
  if constexpr (!kPairs && std::is_same_v<T, float>) {
    return image;
  } else {
    scratch.resize(kPairs ? (count + 1) / 2 : count);
    if constexpr (kPairs) {
      ToHalves(image, count, reinterpret_cast<Bits*>(scratch.data()));
    } else {
      for (int64_t i = 0; i < count; ++i) scratch[i] = static_cast<float>(image[i]);
    }
    return scratch.data();
  }
}

// Weights [rows, filters] as words [rows / n, filters]; n = 2: pairs of rows.
template <bool kPairs>
std::vector<Word> WeightWords(const float* weights, int64_t rows, int64_t filters) {
  if constexpr (!kPairs) return std::vector<Word>(weights, weights + rows * filters);
  std::vector<uint16_t> halves;
  const uint16_t* from = Halves(weights, rows * filters, halves);
  std::vector<Word> words(rows / 2 * filters);
  for (int64_t row = 0; row < rows / 2; ++row) {
    const uint16_t* pair = from + 2 * row * filters;
    ToPairs(pair, pair + filters, filters, words.data() + row * filters);
  }
  return words;
}

template <bool kPairs>
using Op = std::conditional_t<kPairs, Half, Single>;

template <bool kPairs, class T>
void Forward(const Shape& s, const void* x, const Word* weights, const float* bias, float scale, float* y) {
  static thread_local std::vector<Word> scratch;
  const int64_t depth = s.channels / (kPairs ? 2 : 1), run = s.side * depth;
  const Word* words = Words<kPairs>(static_cast<const T*>(x), s.height * s.width * s.channels, scratch);
  const Span span{s.side, s.width * depth, run * s.filters, run, 1, s.filters, s.stride * depth};
  const Epilogue end{s.filters, scale, false};
  for (int64_t row = 0; row < s.rows; ++row) {
    Tiles<Op<kPairs>, 0>::Run(span, s.columns, s.filters, words + row * s.stride * s.width * depth, weights,
                              end, bias, y + row * s.columns * s.filters);
  }
}

// dw += of one image, [side, side * channels, filters].
template <bool kPairs, class T>
void Weights(const Shape& s, const void* image, const float* dy, float scale, float* dw) {
  static thread_local std::vector<Word> x_scratch, dy_scratch;
  const T* x = static_cast<const T*>(image);
  const int64_t run = s.side * s.channels, pixels = s.height * s.width * s.channels;
  const Word *x_words, *dy_words;
  Span span;
  int64_t next;  // words from one row of x to the next
  if constexpr (kPairs) {  // of what two neighbouring places see
    static thread_local std::vector<uint16_t> x_halves, dy_halves;
    const uint16_t* from = Halves(x, pixels, x_halves);
    const uint16_t* outputs = Halves(dy, s.rows * s.columns * s.filters, dy_halves);
    const int64_t columns = (s.columns + 1) / 2, apart = s.stride * s.channels;
    x_scratch.resize(s.height * columns * run);
    dy_scratch.resize(s.rows * columns * s.filters);
    for (int64_t column = 0; column < columns; ++column) {
      const bool two = 2 * column + 1 < s.columns;
      for (int64_t row = 0; row < (s.rows - 1) * s.stride + s.side; ++row) {
        const uint16_t* first = from + row * s.width * s.channels + 2 * column * apart;
        ToPairs(first, two ? first + apart : nullptr, run, x_scratch.data() + (row * columns + column) * run);
      }
      for (int64_t row = 0; row < s.rows; ++row) {
        const uint16_t* first = outputs + (row * s.columns + 2 * column) * s.filters;
        ToPairs(first, two ? first + s.filters : nullptr, s.filters,
                dy_scratch.data() + (row * columns + column) * s.filters);
      }
    }
    x_words = x_scratch.data(), dy_words = dy_scratch.data();
    next = columns * run;
    span = {s.rows, s.stride * next, columns * s.filters, columns, run, s.filters, 1};
  } else {
    x_words = Words<false>(x, pixels, x_scratch), dy_words = dy;
    next = s.width * s.channels;
    span = {s.rows, s.stride * next, s.columns * s.filters, s.columns, s.stride * s.channels, s.filters, 1};
  }
  const Epilogue end{s.filters, scale, true};
  for (int64_t i = 0; i < s.side; ++i) {
    Tiles<Op<kPairs>, 1>::Run(span, run, s.filters, x_words + i * next, dy_words, end, nullptr,
                              dw + i * run * s.filters);
  }
}

template <bool kPairs>
void Inputs(const Shape& s, const float* dy, const Word* turned, float* dx) {
  static thread_local std::vector<Word> padded;
  const int64_t m = s.side / s.stride, depth = s.filters / (kPairs ? 2 : 1);
  const int64_t width = s.columns + 2 * (m - 1), height = s.rows + 2 * (m - 1), line = s.columns * depth;
  padded.assign(width * height * depth, 0);
  for (int64_t row = 0; row < s.rows; ++row) {
    Word* to = padded.data() + ((row + m - 1) * width + m - 1) * depth;
    const float* from = dy + row * s.columns * s.filters;
    if constexpr (kPairs) {
      ToHalves(from, s.columns * s.filters, reinterpret_cast<Bits*>(to));
    } else {
      std::memcpy(to, from, line * sizeof(Word));
    }
  }
  const int64_t rows = s.rows + m - 1, columns = s.columns + m - 1;  // of the image, in blocks
  if (rows * s.stride < s.height || columns * s.stride < s.width) {
    std::memset(dx, 0, s.height * s.width * s.channels * sizeof(float));
  }
  const Span span{m, width * depth, m * depth * s.channels, m * depth, 1, s.channels, depth};
  const Epilogue end{s.stride * s.channels, 1.0f, false};
  for (int64_t place = 0; place < s.stride * s.stride; ++place) {
    const Word* weights = turned + place * m * m * depth * s.channels;
    for (int64_t row = 0; row < rows; ++row) {
      float* to = dx + ((row * s.stride + place / s.stride) * s.width + place % s.stride) * s.channels;
      Tiles<Op<kPairs>, 0>::Run(span, columns, s.channels, padded.data() + row * width * depth, weights, end,
                                nullptr, to);
    }
  }
}

template <bool kPairs, class T>
constexpr Passes All() {
  return {Forward<kPairs, T>, Weights<kPairs, T>, Inputs<kPairs>, WeightWords<kPairs>};
}

inline Passes Choose(bool half, bool bytes) {
  if (half && kHalf) return bytes ? All<true, uint8_t>() : All<true, float>();
  return bytes ? All<false, uint8_t>() : All<false, float>();
}

// Runs an optimized model from C++ with onnxfold's kernels:
//   c++ -std=c++17 -I$ONNXRUNTIME/include run.cpp -L$ONNXRUNTIME/lib -lonnxruntime -o run
//   ./run fast.onnx "$(onnxfold lib-path)"
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Ort::Env env;
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(argv[2]);
  Ort::Session session(env, argv[1], options);

  // One input and one output of floats; a free dimension is 1.
  Ort::AllocatorWithDefaultOptions allocator;
  auto input_name = session.GetInputNameAllocated(0, allocator);
  auto output_name = session.GetOutputNameAllocated(0, allocator);
  auto shape = session.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();
  std::int64_t count = 1;
  for (auto& dim : shape) count *= dim = dim < 0 ? 1 : dim;
  std::vector<float> data(count);
  for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 7) - 3;

  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto input = Ort::Value::CreateTensor<float>(memory, data.data(), data.size(), shape.data(),
                                               shape.size());
  const char* inputs[] = {input_name.get()};
  const char* outputs[] = {output_name.get()};
  auto results = session.Run(Ort::RunOptions{}, inputs, &input, 1, outputs, 1);
  const auto total = results[0].GetTensorTypeAndShapeInfo().GetElementCount();
  for (std::size_t i = 0; i < total; ++i) std::cout << results[0].GetTensorData<float>()[i] << ' ';
  std::cout << '\n';
}

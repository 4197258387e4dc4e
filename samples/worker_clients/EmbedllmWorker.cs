// Made by `python -m tools.make_worker_clients --write`; change what that reads, not this file.
// A client of `embedllm worker`: this file, no packages, C# 7, .NET Framework 4.6, .NET 5 or Mono, or later ones.
// docs/worker.md documents the methods.
using System;
using System.Collections;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

namespace Embedllm
{
    /// <summary>The worker answered with an error, or is gone: then Code is 0.</summary>
    public sealed class WorkerException : Exception
    {
        public WorkerException(string message, long code = 0, IDictionary<string, object> data = null) : base(message)
        {
            Code = code;
            Details = data ?? new Dictionary<string, object>();
        }

        public long Code { get; }

        /// <summary>What else the worker told, such as "kind", the library's name of the error.</summary>
        public IDictionary<string, object> Details { get; }
    }

    /// <summary>A worker process and the requests that it has. May be used from several threads.</summary>
    public sealed class WorkerClient : IDisposable
    {
        private const int KeptLines = 20; // of the worker's stderr, to tell why it ended
        private readonly Process process;
        private readonly StreamWriter input; // of its stdin
        private readonly Dictionary<long, Waiting> waiting = new Dictionary<long, Waiting>(); // its own lock
        private readonly object writing = new object();
        private readonly Queue<string> errors = new Queue<string>();
        private readonly Thread reader;
        private long lastId;
        private string trouble; // why the worker was ended here
        private string gone; // why, once it is

        /// <param name="program">Default: embedllm.</param>
        /// <param name="arguments">As on a command line.</param>
        /// <param name="environment">What differs from this process's.</param>
        public WorkerClient(string program = "embedllm", string arguments = "worker",
                            IDictionary<string, string> environment = null)
        {
            var start = new ProcessStartInfo(program, arguments)
            {
                UseShellExecute = false, CreateNoWindow = true,
                RedirectStandardInput = true, RedirectStandardOutput = true, RedirectStandardError = true,
            };
            foreach (var pair in environment ?? new Dictionary<string, string>())
                start.EnvironmentVariables[pair.Key] = pair.Value;
            process = Process.Start(start);
            input = process.StandardInput;
            process.ErrorDataReceived += (_, line) => Keep(line.Data);
            process.BeginErrorReadLine();
            reader = new Thread(Listen) { IsBackground = true };
            reader.Start();
        }

        /// <summary>
        /// Told of what loads, and of devices that were chosen; in a thread of the client's. What it throws fails the
        /// request that runs, but not from an async lambda: that is "async void", whose exceptions end the process.
        /// </summary>
        public Action<Progress> OnProgress { get; set; }
        public Action<Log> OnLog { get; set; }

        /// <summary>The version of the protocol, the methods and the limits.</summary>
        public async Task<Initialized> InitializeAsync(InitializeParams parameters = null, CancellationToken cancellation = default(CancellationToken))
        {
            return Initialized.From(await RequestAsync("initialize", parameters?.ToJson() ?? new Dictionary<string, object>(), null, cancellation).ConfigureAwait(false));
        }

        /// <summary>The devices of this machine.</summary>
        public async Task<Devices> DevicesAsync(CancellationToken cancellation = default(CancellationToken))
        {
            return Devices.From(await RequestAsync("devices", new Dictionary<string, object>(), null, cancellation).ConfigureAwait(false));
        }

        /// <summary>Loads a model in place of the one before.</summary>
        public async Task<Loaded> LoadAsync(LoadParams parameters = null, CancellationToken cancellation = default(CancellationToken))
        {
            return Loaded.From(await RequestAsync("load", parameters?.ToJson() ?? new Dictionary<string, object>(), null, cancellation).ConfigureAwait(false));
        }

        /// <summary>Continues a text as it stands.</summary>
        public async Task<Reply> GenerateAsync(GenerateParams parameters, Action<Chunk> onChunk = null, CancellationToken cancellation = default(CancellationToken))
        {
            return Reply.From(await RequestAsync("generate", parameters.ToJson(), onChunk, cancellation).ConfigureAwait(false));
        }

        /// <summary>Replies to a conversation.</summary>
        public async Task<Reply> ChatAsync(ChatParams parameters, Action<Chunk> onChunk = null, CancellationToken cancellation = default(CancellationToken))
        {
            return Reply.From(await RequestAsync("chat", parameters.ToJson(), onChunk, cancellation).ConfigureAwait(false));
        }

        /// <summary>Frees the model.</summary>
        public async Task UnloadAsync(CancellationToken cancellation = default(CancellationToken))
        {
            await RequestAsync("unload", new Dictionary<string, object>(), null, cancellation).ConfigureAwait(false);
        }

        /// <summary>Ends the worker.</summary>
        public async Task ShutdownAsync(CancellationToken cancellation = default(CancellationToken))
        {
            await RequestAsync("shutdown", new Dictionary<string, object>(), null, cancellation).ConfigureAwait(false);
        }

        /// <summary>A request by its wire names. The token cancels it; a reply then ends with the text so far.</summary>
        public Task<Dictionary<string, object>> RequestAsync(string method, IDictionary<string, object> parameters,
            Action<Chunk> onChunk = null, CancellationToken cancellation = default(CancellationToken))
        {
            var asked = new Waiting { OnChunk = onChunk };
            var id = Interlocked.Increment(ref lastId);
            var line = Line(new Dictionary<string, object>
                { { "id", id }, { "method", method }, { "params", parameters } }); // may throw, and nobody waits then
            lock (waiting)
            {
                if (gone != null) throw new WorkerException(gone);
                waiting[id] = asked;
            }
            Write(line);
            var registration = cancellation.Register(() => Cancel(id));
            asked.Done.Task.ContinueWith(_ => registration.Dispose(), TaskScheduler.Default);
            return asked.Done.Task;
        }

        public void Dispose()
        {
            Close();
        }

        /// <summary>
        /// Ends the worker, after the timeout by force; requests that are not answered are cancelled. In a callback it
        /// returns at once, for the worker's last messages are still to be read.
        /// </summary>
        public void Close(int timeoutMs = 5000)
        {
            if (Thread.CurrentThread == reader)
            {
                Task.Run(() => Close(timeoutMs));
                return;
            }
            if (!EndInput(timeoutMs) || !reader.Join(timeoutMs))
            {
                Kill("it did not end within " + timeoutMs / 1000.0 + " s, and was killed");
                if (!reader.Join(timeoutMs)) return; // a callback does not return; the process is not ours to free
            }
            process.Dispose();
        }

        /// <summary>Whether it could be done: another thread may be writing to a worker that does not read.</summary>
        private bool EndInput(int timeoutMs)
        {
            if (!Monitor.TryEnter(writing, timeoutMs)) return false;
            try
            {
                input.Close();
            }
            catch (IOException)
            {
                // it ended
            }
            finally
            {
                Monitor.Exit(writing);
            }
            return true;
        }

        private void Kill(string why)
        {
            trouble = why;
            try
            {
                process.Kill();
            }
            catch (Exception error) when (error is InvalidOperationException || error is System.ComponentModel.Win32Exception)
            {
                // it ended
            }
        }

        private void Cancel(long id)
        {
            var named = new Dictionary<string, object> { { "id", id } };
            Write(Line(new Dictionary<string, object> { { "method", "cancel" }, { "params", named } }));
        }

        private static string Line(Dictionary<string, object> message)
        {
            message["jsonrpc"] = "2.0";
            return Json.Write(message) + "\n"; // ASCII: the encoding of the pipe does not matter
        }

        private void Write(string line)
        {
            try
            {
                lock (writing)
                {
                    input.Write(line);
                    input.Flush();
                }
            }
            catch (Exception error) when (error is IOException || error is ObjectDisposedException)
            {
                // it ended; the reader tells those who wait
            }
        }

        private void Listen()
        {
            string line = null;
            try
            {
                while ((line = process.StandardOutput.ReadLine()) != null) Take(Json.ReadObject(line));
            }
            catch (Exception error) // an exception that is not caught in a thread ends the process
            {
                Kill("it wrote what is no message: " + line + " (" + error.Message + ")");
            }
            process.WaitForExit(); // stderr is read whole then
            List<Waiting> left;
            lock (waiting)
            {
                lock (errors) gone = "the worker ended: " + (trouble ?? "exit code " + process.ExitCode) + " " +
                                     string.Join(" ", errors);
                left = waiting.Values.ToList();
                waiting.Clear();
            }
            foreach (var asked in left) asked.Done.TrySetException(new WorkerException(gone));
        }

        private void Take(Dictionary<string, object> message)
        {
            object method;
            if (message.TryGetValue("method", out method))
            {
                var told = (Dictionary<string, object>)message["params"];
                if ((string)method == "progress") CallBack((long)told["id"], OnProgress, Progress.From(told));
                else if ((string)method == "log") CallBack(Oldest(), OnLog, Log.From(told));
                else if ((string)method == "chunk") CallBack((long)told["id"], OnChunkOf((long)told["id"]), Chunk.From(told));
                return;
            }
            Waiting asked;
            lock (waiting)
            {
                if (!(message["id"] is long) || !waiting.TryGetValue((long)message["id"], out asked)) return;
                waiting.Remove((long)message["id"]);
            }
            object found;
            if (message.TryGetValue("error", out found))
            {
                var error = (Dictionary<string, object>)found;
                object data;
                error.TryGetValue("data", out data);
                asked.Done.TrySetException(new WorkerException((string)error["message"], (long)error["code"],
                                                               (Dictionary<string, object>)data));
            }
            else asked.Done.TrySetResult((Dictionary<string, object>)message["result"]);
        }

        private Action<Chunk> OnChunkOf(long id)
        {
            Waiting asked;
            lock (waiting) return waiting.TryGetValue(id, out asked) ? asked.OnChunk : null;
        }

        /// <summary>The request that a log is of, for it names none; null when none waits.</summary>
        private long? Oldest()
        {
            lock (waiting) return waiting.Count > 0 ? waiting.Keys.Min() : (long?)null;
        }

        /// <summary>
        /// Calls back the host. What that throws fails the request, and no other; it keeps its place until the worker has
        /// answered.
        /// </summary>
        private void CallBack<T>(long? id, Action<T> callback, T told)
        {
            Waiting asked = null;
            lock (waiting) if (id != null && !waiting.TryGetValue(id.Value, out asked)) return;
            if (asked != null && asked.Done.Task.IsCompleted) return; // it has failed
            try
            {
                callback?.Invoke(told);
            }
            catch (Exception error)
            {
                if (asked == null)
                {
                    Console.Error.WriteLine(error); // nobody waits
                    return;
                }
                asked.Done.TrySetException(error);
                Cancel(id.Value);
            }
        }

        private void Keep(string line)
        {
            lock (errors)
            {
                if (line != null) errors.Enqueue(line);
                if (errors.Count > KeptLines) errors.Dequeue();
            }
        }

        private sealed class Waiting
        {
            public Action<Chunk> OnChunk;
            public readonly TaskCompletionSource<Dictionary<string, object>> Done =
                new TaskCompletionSource<Dictionary<string, object>>(TaskCreationOptions.RunContinuationsAsynchronously);
        }
    }

    public sealed class InitializeParams : IJson
    {
        public long? Protocol { get; set; }

        public static InitializeParams From(IDictionary<string, object> json)
        {
            return new InitializeParams
            {
                Protocol = (long?)Json.Get(json, "protocol"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "protocol", Protocol);
            return json;
        }
    }

    public sealed class LoadParams : IJson
    {
        public string Model { get; set; }
        public object Device { get; set; }
        public long? Threads { get; set; }
        public bool? Exact { get; set; }
        public bool? ParseSpecial { get; set; }
        /// <summary>One of int8, int4.</summary>
        public string Kv { get; set; }
        public long? Context { get; set; }
        public string Draft { get; set; }
        public Dictionary<string, string> Adapters { get; set; }
        public string CacheDir { get; set; }

        public static LoadParams From(IDictionary<string, object> json)
        {
            return new LoadParams
            {
                Model = (string)Json.Get(json, "model"),
                Device = Json.Get(json, "device"),
                Threads = (long?)Json.Get(json, "threads"),
                Exact = (bool?)Json.Get(json, "exact"),
                ParseSpecial = (bool?)Json.Get(json, "parse_special"),
                Kv = (string)Json.Get(json, "kv"),
                Context = (long?)Json.Get(json, "context"),
                Draft = (string)Json.Get(json, "draft"),
                Adapters = Json.Members(Json.Get(json, "adapters"), one => (string)one),
                CacheDir = (string)Json.Get(json, "cache_dir"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "model", Model);
            Json.Put(json, "device", Device);
            Json.Put(json, "threads", Threads);
            Json.Put(json, "exact", Exact);
            Json.Put(json, "parse_special", ParseSpecial);
            Json.Put(json, "kv", Kv);
            Json.Put(json, "context", Context);
            Json.Put(json, "draft", Draft);
            Json.Put(json, "adapters", Adapters);
            Json.Put(json, "cache_dir", CacheDir);
            return json;
        }
    }

    public sealed class GenerateParams : IJson
    {
        public string Prompt { get; set; }
        public string Adapter { get; set; }
        public long? MaxTokens { get; set; }
        public long? MinTokens { get; set; }
        public object Stop { get; set; }
        public List<long?> StopTokens { get; set; }
        public double? Timeout { get; set; }
        /// <summary>One of auto, lookup, draft, off.</summary>
        public string Speculate { get; set; }
        public object ResponseFormat { get; set; }
        /// <summary>Sampling temperature; 0 = greedy.</summary>
        public double? Temperature { get; set; }
        /// <summary>Dynamic temperature range (dynatemp); 0 = off.</summary>
        public double? DynamicTemperature { get; set; }
        /// <summary>Dynamic temperature exponent (dynatemp).</summary>
        public double? DynamicExponent { get; set; }
        /// <summary>Top-k sampling: keep the K most probable tokens; 0 = off.</summary>
        public long? TopK { get; set; }
        /// <summary>Top-p (nucleus) sampling: keep the fewest tokens with this probability mass; 1 = off.</summary>
        public double? TopP { get; set; }
        /// <summary>Min-p sampling: minimum probability relative to the best token; 0 = off.</summary>
        public double? MinP { get; set; }
        /// <summary>Locally typical sampling: probability mass; 1 = off.</summary>
        public double? TypicalP { get; set; }
        /// <summary>Top-n-sigma sampling: keep logits within N standard deviations of the best; 0 = off.</summary>
        public double? TopNSigma { get; set; }
        /// <summary>XTC sampling: probability of removing the top choices; 0 = off.</summary>
        public double? XtcProbability { get; set; }
        /// <summary>XTC sampling: minimum probability of a top choice.</summary>
        public double? XtcThreshold { get; set; }
        /// <summary>Mirostat 1/2: target perplexity control, in place of the truncations above; 0 = off.</summary>
        public long? Mirostat { get; set; }
        /// <summary>Mirostat target surprise tau (bits).</summary>
        public double? MirostatTau { get; set; }
        /// <summary>Mirostat learning rate eta.</summary>
        public double? MirostatEta { get; set; }
        /// <summary>Repetition penalty on tokens of prompt and reply; 1 = off.</summary>
        public double? RepetitionPenalty { get; set; }
        /// <summary>Presence penalty on tokens of the reply; 0 = off.</summary>
        public double? PresencePenalty { get; set; }
        /// <summary>Frequency penalty on tokens of the reply, per occurrence; 0 = off.</summary>
        public double? FrequencyPenalty { get; set; }
        /// <summary>DRY penalty on repeated sequences: multiplier; 0 = off.</summary>
        public double? DryMultiplier { get; set; }
        /// <summary>DRY penalty: base of the exponential growth.</summary>
        public double? DryBase { get; set; }
        /// <summary>DRY penalty: longest sequence that may repeat without a penalty.</summary>
        public long? DryAllowedLength { get; set; }
        /// <summary>DRY penalty: number of last tokens to search; 0 = all.</summary>
        public long? DryRange { get; set; }
        /// <summary>DRY sequence breakers.</summary>
        public List<string> DryBreakers { get; set; }
        /// <summary>No n-gram of N tokens occurs twice; 0 = off.</summary>
        public long? NoRepeatNgram { get; set; }
        /// <summary>Banned strings (bad_words).</summary>
        public List<string> BadWords { get; set; }
        /// <summary>Random seed, for reproducible replies on the same device.</summary>
        public long? Seed { get; set; }
        public Dictionary<string, double?> LogitBias { get; set; }
        public bool? Special { get; set; }

        public static GenerateParams From(IDictionary<string, object> json)
        {
            return new GenerateParams
            {
                Prompt = (string)Json.Get(json, "prompt"),
                Adapter = (string)Json.Get(json, "adapter"),
                MaxTokens = (long?)Json.Get(json, "max_tokens"),
                MinTokens = (long?)Json.Get(json, "min_tokens"),
                Stop = Json.Get(json, "stop"),
                StopTokens = Json.Items(Json.Get(json, "stop_tokens"), one => (long?)one),
                Timeout = Json.Number(Json.Get(json, "timeout")),
                Speculate = (string)Json.Get(json, "speculate"),
                ResponseFormat = Json.Get(json, "response_format"),
                Temperature = Json.Number(Json.Get(json, "temperature")),
                DynamicTemperature = Json.Number(Json.Get(json, "dynamic_temperature")),
                DynamicExponent = Json.Number(Json.Get(json, "dynamic_exponent")),
                TopK = (long?)Json.Get(json, "top_k"),
                TopP = Json.Number(Json.Get(json, "top_p")),
                MinP = Json.Number(Json.Get(json, "min_p")),
                TypicalP = Json.Number(Json.Get(json, "typical_p")),
                TopNSigma = Json.Number(Json.Get(json, "top_n_sigma")),
                XtcProbability = Json.Number(Json.Get(json, "xtc_probability")),
                XtcThreshold = Json.Number(Json.Get(json, "xtc_threshold")),
                Mirostat = (long?)Json.Get(json, "mirostat"),
                MirostatTau = Json.Number(Json.Get(json, "mirostat_tau")),
                MirostatEta = Json.Number(Json.Get(json, "mirostat_eta")),
                RepetitionPenalty = Json.Number(Json.Get(json, "repetition_penalty")),
                PresencePenalty = Json.Number(Json.Get(json, "presence_penalty")),
                FrequencyPenalty = Json.Number(Json.Get(json, "frequency_penalty")),
                DryMultiplier = Json.Number(Json.Get(json, "dry_multiplier")),
                DryBase = Json.Number(Json.Get(json, "dry_base")),
                DryAllowedLength = (long?)Json.Get(json, "dry_allowed_length"),
                DryRange = (long?)Json.Get(json, "dry_range"),
                DryBreakers = Json.Items(Json.Get(json, "dry_breakers"), one => (string)one),
                NoRepeatNgram = (long?)Json.Get(json, "no_repeat_ngram"),
                BadWords = Json.Items(Json.Get(json, "bad_words"), one => (string)one),
                Seed = (long?)Json.Get(json, "seed"),
                LogitBias = Json.Members(Json.Get(json, "logit_bias"), one => Json.Number(one)),
                Special = (bool?)Json.Get(json, "special"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "prompt", Prompt);
            Json.Put(json, "adapter", Adapter);
            Json.Put(json, "max_tokens", MaxTokens);
            Json.Put(json, "min_tokens", MinTokens);
            Json.Put(json, "stop", Stop);
            Json.Put(json, "stop_tokens", StopTokens);
            Json.Put(json, "timeout", Timeout);
            Json.Put(json, "speculate", Speculate);
            Json.Put(json, "response_format", ResponseFormat);
            Json.Put(json, "temperature", Temperature);
            Json.Put(json, "dynamic_temperature", DynamicTemperature);
            Json.Put(json, "dynamic_exponent", DynamicExponent);
            Json.Put(json, "top_k", TopK);
            Json.Put(json, "top_p", TopP);
            Json.Put(json, "min_p", MinP);
            Json.Put(json, "typical_p", TypicalP);
            Json.Put(json, "top_n_sigma", TopNSigma);
            Json.Put(json, "xtc_probability", XtcProbability);
            Json.Put(json, "xtc_threshold", XtcThreshold);
            Json.Put(json, "mirostat", Mirostat);
            Json.Put(json, "mirostat_tau", MirostatTau);
            Json.Put(json, "mirostat_eta", MirostatEta);
            Json.Put(json, "repetition_penalty", RepetitionPenalty);
            Json.Put(json, "presence_penalty", PresencePenalty);
            Json.Put(json, "frequency_penalty", FrequencyPenalty);
            Json.Put(json, "dry_multiplier", DryMultiplier);
            Json.Put(json, "dry_base", DryBase);
            Json.Put(json, "dry_allowed_length", DryAllowedLength);
            Json.Put(json, "dry_range", DryRange);
            Json.Put(json, "dry_breakers", DryBreakers);
            Json.Put(json, "no_repeat_ngram", NoRepeatNgram);
            Json.Put(json, "bad_words", BadWords);
            Json.Put(json, "seed", Seed);
            Json.Put(json, "logit_bias", LogitBias);
            Json.Put(json, "special", Special);
            return json;
        }
    }

    public sealed class ChatParams : IJson
    {
        public List<Message> Messages { get; set; }
        public string System { get; set; }
        public Dictionary<string, object> Variables { get; set; }
        public string Adapter { get; set; }
        /// <summary>Sampling temperature; 0 = greedy.</summary>
        public double? Temperature { get; set; }
        /// <summary>Dynamic temperature range (dynatemp); 0 = off.</summary>
        public double? DynamicTemperature { get; set; }
        /// <summary>Dynamic temperature exponent (dynatemp).</summary>
        public double? DynamicExponent { get; set; }
        /// <summary>Top-k sampling: keep the K most probable tokens; 0 = off.</summary>
        public long? TopK { get; set; }
        /// <summary>Top-p (nucleus) sampling: keep the fewest tokens with this probability mass; 1 = off.</summary>
        public double? TopP { get; set; }
        /// <summary>Min-p sampling: minimum probability relative to the best token; 0 = off.</summary>
        public double? MinP { get; set; }
        /// <summary>Locally typical sampling: probability mass; 1 = off.</summary>
        public double? TypicalP { get; set; }
        /// <summary>Top-n-sigma sampling: keep logits within N standard deviations of the best; 0 = off.</summary>
        public double? TopNSigma { get; set; }
        /// <summary>XTC sampling: probability of removing the top choices; 0 = off.</summary>
        public double? XtcProbability { get; set; }
        /// <summary>XTC sampling: minimum probability of a top choice.</summary>
        public double? XtcThreshold { get; set; }
        /// <summary>Mirostat 1/2: target perplexity control, in place of the truncations above; 0 = off.</summary>
        public long? Mirostat { get; set; }
        /// <summary>Mirostat target surprise tau (bits).</summary>
        public double? MirostatTau { get; set; }
        /// <summary>Mirostat learning rate eta.</summary>
        public double? MirostatEta { get; set; }
        /// <summary>Repetition penalty on tokens of prompt and reply; 1 = off.</summary>
        public double? RepetitionPenalty { get; set; }
        /// <summary>Presence penalty on tokens of the reply; 0 = off.</summary>
        public double? PresencePenalty { get; set; }
        /// <summary>Frequency penalty on tokens of the reply, per occurrence; 0 = off.</summary>
        public double? FrequencyPenalty { get; set; }
        /// <summary>DRY penalty on repeated sequences: multiplier; 0 = off.</summary>
        public double? DryMultiplier { get; set; }
        /// <summary>DRY penalty: base of the exponential growth.</summary>
        public double? DryBase { get; set; }
        /// <summary>DRY penalty: longest sequence that may repeat without a penalty.</summary>
        public long? DryAllowedLength { get; set; }
        /// <summary>DRY penalty: number of last tokens to search; 0 = all.</summary>
        public long? DryRange { get; set; }
        /// <summary>DRY sequence breakers.</summary>
        public List<string> DryBreakers { get; set; }
        /// <summary>No n-gram of N tokens occurs twice; 0 = off.</summary>
        public long? NoRepeatNgram { get; set; }
        /// <summary>Banned strings (bad_words).</summary>
        public List<string> BadWords { get; set; }
        /// <summary>Random seed, for reproducible replies on the same device.</summary>
        public long? Seed { get; set; }
        public Dictionary<string, double?> LogitBias { get; set; }
        public long? MaxTokens { get; set; }
        public long? MinTokens { get; set; }
        public object Stop { get; set; }
        public List<long?> StopTokens { get; set; }
        public double? Timeout { get; set; }
        /// <summary>One of auto, lookup, draft, off.</summary>
        public string Speculate { get; set; }
        public object ResponseFormat { get; set; }
        public List<Tool> Tools { get; set; }
        public object ToolChoice { get; set; }
        public string ReasoningEffort { get; set; }
        public List<Dictionary<string, object>> Documents { get; set; }
        public bool? Special { get; set; }

        public static ChatParams From(IDictionary<string, object> json)
        {
            return new ChatParams
            {
                Messages = Json.Items(Json.Get(json, "messages"), one => Json.Typed(one, Message.From)),
                System = (string)Json.Get(json, "system"),
                Variables = (Dictionary<string, object>)Json.Get(json, "variables"),
                Adapter = (string)Json.Get(json, "adapter"),
                Temperature = Json.Number(Json.Get(json, "temperature")),
                DynamicTemperature = Json.Number(Json.Get(json, "dynamic_temperature")),
                DynamicExponent = Json.Number(Json.Get(json, "dynamic_exponent")),
                TopK = (long?)Json.Get(json, "top_k"),
                TopP = Json.Number(Json.Get(json, "top_p")),
                MinP = Json.Number(Json.Get(json, "min_p")),
                TypicalP = Json.Number(Json.Get(json, "typical_p")),
                TopNSigma = Json.Number(Json.Get(json, "top_n_sigma")),
                XtcProbability = Json.Number(Json.Get(json, "xtc_probability")),
                XtcThreshold = Json.Number(Json.Get(json, "xtc_threshold")),
                Mirostat = (long?)Json.Get(json, "mirostat"),
                MirostatTau = Json.Number(Json.Get(json, "mirostat_tau")),
                MirostatEta = Json.Number(Json.Get(json, "mirostat_eta")),
                RepetitionPenalty = Json.Number(Json.Get(json, "repetition_penalty")),
                PresencePenalty = Json.Number(Json.Get(json, "presence_penalty")),
                FrequencyPenalty = Json.Number(Json.Get(json, "frequency_penalty")),
                DryMultiplier = Json.Number(Json.Get(json, "dry_multiplier")),
                DryBase = Json.Number(Json.Get(json, "dry_base")),
                DryAllowedLength = (long?)Json.Get(json, "dry_allowed_length"),
                DryRange = (long?)Json.Get(json, "dry_range"),
                DryBreakers = Json.Items(Json.Get(json, "dry_breakers"), one => (string)one),
                NoRepeatNgram = (long?)Json.Get(json, "no_repeat_ngram"),
                BadWords = Json.Items(Json.Get(json, "bad_words"), one => (string)one),
                Seed = (long?)Json.Get(json, "seed"),
                LogitBias = Json.Members(Json.Get(json, "logit_bias"), one => Json.Number(one)),
                MaxTokens = (long?)Json.Get(json, "max_tokens"),
                MinTokens = (long?)Json.Get(json, "min_tokens"),
                Stop = Json.Get(json, "stop"),
                StopTokens = Json.Items(Json.Get(json, "stop_tokens"), one => (long?)one),
                Timeout = Json.Number(Json.Get(json, "timeout")),
                Speculate = (string)Json.Get(json, "speculate"),
                ResponseFormat = Json.Get(json, "response_format"),
                Tools = Json.Items(Json.Get(json, "tools"), one => Json.Typed(one, Tool.From)),
                ToolChoice = Json.Get(json, "tool_choice"),
                ReasoningEffort = (string)Json.Get(json, "reasoning_effort"),
                Documents = Json.Items(Json.Get(json, "documents"), one => (Dictionary<string, object>)one),
                Special = (bool?)Json.Get(json, "special"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "messages", Messages);
            Json.Put(json, "system", System);
            Json.Put(json, "variables", Variables);
            Json.Put(json, "adapter", Adapter);
            Json.Put(json, "temperature", Temperature);
            Json.Put(json, "dynamic_temperature", DynamicTemperature);
            Json.Put(json, "dynamic_exponent", DynamicExponent);
            Json.Put(json, "top_k", TopK);
            Json.Put(json, "top_p", TopP);
            Json.Put(json, "min_p", MinP);
            Json.Put(json, "typical_p", TypicalP);
            Json.Put(json, "top_n_sigma", TopNSigma);
            Json.Put(json, "xtc_probability", XtcProbability);
            Json.Put(json, "xtc_threshold", XtcThreshold);
            Json.Put(json, "mirostat", Mirostat);
            Json.Put(json, "mirostat_tau", MirostatTau);
            Json.Put(json, "mirostat_eta", MirostatEta);
            Json.Put(json, "repetition_penalty", RepetitionPenalty);
            Json.Put(json, "presence_penalty", PresencePenalty);
            Json.Put(json, "frequency_penalty", FrequencyPenalty);
            Json.Put(json, "dry_multiplier", DryMultiplier);
            Json.Put(json, "dry_base", DryBase);
            Json.Put(json, "dry_allowed_length", DryAllowedLength);
            Json.Put(json, "dry_range", DryRange);
            Json.Put(json, "dry_breakers", DryBreakers);
            Json.Put(json, "no_repeat_ngram", NoRepeatNgram);
            Json.Put(json, "bad_words", BadWords);
            Json.Put(json, "seed", Seed);
            Json.Put(json, "logit_bias", LogitBias);
            Json.Put(json, "max_tokens", MaxTokens);
            Json.Put(json, "min_tokens", MinTokens);
            Json.Put(json, "stop", Stop);
            Json.Put(json, "stop_tokens", StopTokens);
            Json.Put(json, "timeout", Timeout);
            Json.Put(json, "speculate", Speculate);
            Json.Put(json, "response_format", ResponseFormat);
            Json.Put(json, "tools", Tools);
            Json.Put(json, "tool_choice", ToolChoice);
            Json.Put(json, "reasoning_effort", ReasoningEffort);
            Json.Put(json, "documents", Documents);
            Json.Put(json, "special", Special);
            return json;
        }
    }

    public sealed class Limits : IJson
    {
        public long? MessageBytes { get; set; }
        public long? QueuedRequests { get; set; }

        public static Limits From(IDictionary<string, object> json)
        {
            return new Limits
            {
                MessageBytes = (long?)Json.Get(json, "message_bytes"),
                QueuedRequests = (long?)Json.Get(json, "queued_requests"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "message_bytes", MessageBytes);
            Json.Put(json, "queued_requests", QueuedRequests);
            return json;
        }
    }

    public sealed class Initialized : IJson
    {
        public long? Protocol { get; set; }
        public List<string> Methods { get; set; }
        public Limits Limits { get; set; }
        public Dictionary<string, string> Versions { get; set; }

        public static Initialized From(IDictionary<string, object> json)
        {
            return new Initialized
            {
                Protocol = (long?)Json.Get(json, "protocol"),
                Methods = Json.Items(Json.Get(json, "methods"), one => (string)one),
                Limits = Json.Typed(Json.Get(json, "limits"), Limits.From),
                Versions = Json.Members(Json.Get(json, "versions"), one => (string)one),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "protocol", Protocol);
            Json.Put(json, "methods", Methods);
            Json.Put(json, "limits", Limits);
            Json.Put(json, "versions", Versions);
            return json;
        }
    }

    public sealed class Device : IJson
    {
        public string Name { get; set; }
        public string Backend { get; set; }
        public string Description { get; set; }
        public bool? Available { get; set; }
        public string Reason { get; set; }
        public string Remedy { get; set; }
        public long? Memory { get; set; }

        public static Device From(IDictionary<string, object> json)
        {
            return new Device
            {
                Name = (string)Json.Get(json, "name"),
                Backend = (string)Json.Get(json, "backend"),
                Description = (string)Json.Get(json, "description"),
                Available = (bool?)Json.Get(json, "available"),
                Reason = (string)Json.Get(json, "reason"),
                Remedy = (string)Json.Get(json, "remedy"),
                Memory = (long?)Json.Get(json, "memory"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "name", Name);
            Json.Put(json, "backend", Backend);
            Json.Put(json, "description", Description);
            Json.Put(json, "available", Available);
            Json.Put(json, "reason", Reason);
            Json.Put(json, "remedy", Remedy);
            Json.Put(json, "memory", Memory);
            return json;
        }
    }

    public sealed class Devices : IJson
    {
        public List<Device> DevicesValue { get; set; }

        public static Devices From(IDictionary<string, object> json)
        {
            return new Devices
            {
                DevicesValue = Json.Items(Json.Get(json, "devices"), one => Json.Typed(one, Device.From)),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "devices", DevicesValue);
            return json;
        }
    }

    public sealed class Loaded : IJson
    {
        public string Model { get; set; }
        public Device Device { get; set; }
        public long? Context { get; set; }
        public bool? CanChat { get; set; }

        public static Loaded From(IDictionary<string, object> json)
        {
            return new Loaded
            {
                Model = (string)Json.Get(json, "model"),
                Device = Json.Typed(Json.Get(json, "device"), Device.From),
                Context = (long?)Json.Get(json, "context"),
                CanChat = (bool?)Json.Get(json, "can_chat"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "model", Model);
            Json.Put(json, "device", Device);
            Json.Put(json, "context", Context);
            Json.Put(json, "can_chat", CanChat);
            return json;
        }
    }

    public sealed class ToolCall : IJson
    {
        public string Id { get; set; }
        public string Name { get; set; }
        public Dictionary<string, object> Arguments { get; set; }
        public string Problem { get; set; }
        public string Text { get; set; }

        public static ToolCall From(IDictionary<string, object> json)
        {
            return new ToolCall
            {
                Id = (string)Json.Get(json, "id"),
                Name = (string)Json.Get(json, "name"),
                Arguments = (Dictionary<string, object>)Json.Get(json, "arguments"),
                Problem = (string)Json.Get(json, "problem"),
                Text = (string)Json.Get(json, "text"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "id", Id);
            Json.Put(json, "name", Name);
            Json.Put(json, "arguments", Arguments);
            Json.Put(json, "problem", Problem);
            Json.Put(json, "text", Text);
            return json;
        }
    }

    public sealed class CallDelta : IJson
    {
        public long? Index { get; set; }
        public string Id { get; set; }
        public string Name { get; set; }
        public string Arguments { get; set; }
        public string Problem { get; set; }

        public static CallDelta From(IDictionary<string, object> json)
        {
            return new CallDelta
            {
                Index = (long?)Json.Get(json, "index"),
                Id = (string)Json.Get(json, "id"),
                Name = (string)Json.Get(json, "name"),
                Arguments = (string)Json.Get(json, "arguments"),
                Problem = (string)Json.Get(json, "problem"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "index", Index);
            Json.Put(json, "id", Id);
            Json.Put(json, "name", Name);
            Json.Put(json, "arguments", Arguments);
            Json.Put(json, "problem", Problem);
            return json;
        }
    }

    public sealed class Reply : IJson
    {
        public string Text { get; set; }
        public string Reasoning { get; set; }
        public List<ToolCall> ToolCalls { get; set; }
        public Message Message { get; set; }
        /// <summary>One of stop, length, context, cancelled, timeout.</summary>
        public string FinishReason { get; set; }
        public object StoppedBy { get; set; }
        public long? PromptTokens { get; set; }
        public long? CachedTokens { get; set; }
        public long? Tokens { get; set; }
        public long? DraftedTokens { get; set; }
        public long? AcceptedTokens { get; set; }
        public double? PrefillS { get; set; }
        public double? DecodeS { get; set; }
        public string Device { get; set; }

        public static Reply From(IDictionary<string, object> json)
        {
            return new Reply
            {
                Text = (string)Json.Get(json, "text"),
                Reasoning = (string)Json.Get(json, "reasoning"),
                ToolCalls = Json.Items(Json.Get(json, "tool_calls"), one => Json.Typed(one, ToolCall.From)),
                Message = Json.Typed(Json.Get(json, "message"), Message.From),
                FinishReason = (string)Json.Get(json, "finish_reason"),
                StoppedBy = Json.Get(json, "stopped_by"),
                PromptTokens = (long?)Json.Get(json, "prompt_tokens"),
                CachedTokens = (long?)Json.Get(json, "cached_tokens"),
                Tokens = (long?)Json.Get(json, "tokens"),
                DraftedTokens = (long?)Json.Get(json, "drafted_tokens"),
                AcceptedTokens = (long?)Json.Get(json, "accepted_tokens"),
                PrefillS = Json.Number(Json.Get(json, "prefill_s")),
                DecodeS = Json.Number(Json.Get(json, "decode_s")),
                Device = (string)Json.Get(json, "device"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "text", Text);
            Json.Put(json, "reasoning", Reasoning);
            Json.Put(json, "tool_calls", ToolCalls);
            Json.Put(json, "message", Message);
            Json.Put(json, "finish_reason", FinishReason);
            Json.Put(json, "stopped_by", StoppedBy);
            Json.Put(json, "prompt_tokens", PromptTokens);
            Json.Put(json, "cached_tokens", CachedTokens);
            Json.Put(json, "tokens", Tokens);
            Json.Put(json, "drafted_tokens", DraftedTokens);
            Json.Put(json, "accepted_tokens", AcceptedTokens);
            Json.Put(json, "prefill_s", PrefillS);
            Json.Put(json, "decode_s", DecodeS);
            Json.Put(json, "device", Device);
            return json;
        }
    }

    public sealed class Message : IJson
    {
        public string Role { get; set; }
        public object Content { get; set; }
        public string ReasoningContent { get; set; }
        public List<MessageToolCall> ToolCalls { get; set; }
        public string ToolCallId { get; set; }
        public string Name { get; set; }
        /// <summary>What has no property of its own.</summary>
        public Dictionary<string, object> More { get; set; } = new Dictionary<string, object>();

        public static Message From(IDictionary<string, object> json)
        {
            return new Message
            {
                Role = (string)Json.Get(json, "role"),
                Content = Json.Get(json, "content"),
                ReasoningContent = (string)Json.Get(json, "reasoning_content"),
                ToolCalls = Json.Items(Json.Get(json, "tool_calls"), one => Json.Typed(one, MessageToolCall.From)),
                ToolCallId = (string)Json.Get(json, "tool_call_id"),
                Name = (string)Json.Get(json, "name"),
                More = Json.Rest(json, "role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>(More);
            Json.Put(json, "role", Role);
            Json.Put(json, "content", Content);
            Json.Put(json, "reasoning_content", ReasoningContent);
            Json.Put(json, "tool_calls", ToolCalls);
            Json.Put(json, "tool_call_id", ToolCallId);
            Json.Put(json, "name", Name);
            return json;
        }
    }

    public sealed class Tool : IJson
    {
        public string Type { get; set; }
        public ToolFunction Function { get; set; }
        /// <summary>What has no property of its own.</summary>
        public Dictionary<string, object> More { get; set; } = new Dictionary<string, object>();

        public static Tool From(IDictionary<string, object> json)
        {
            return new Tool
            {
                Type = (string)Json.Get(json, "type"),
                Function = Json.Typed(Json.Get(json, "function"), ToolFunction.From),
                More = Json.Rest(json, "type", "function"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>(More);
            Json.Put(json, "type", Type);
            Json.Put(json, "function", Function);
            return json;
        }
    }

    public sealed class Chunk : IJson
    {
        public object Id { get; set; }
        public string Text { get; set; }
        public string Reasoning { get; set; }
        public List<ToolCall> ToolCalls { get; set; }
        public List<CallDelta> CallDeltas { get; set; }

        public static Chunk From(IDictionary<string, object> json)
        {
            return new Chunk
            {
                Id = Json.Get(json, "id"),
                Text = (string)Json.Get(json, "text"),
                Reasoning = (string)Json.Get(json, "reasoning"),
                ToolCalls = Json.Items(Json.Get(json, "tool_calls"), one => Json.Typed(one, ToolCall.From)),
                CallDeltas = Json.Items(Json.Get(json, "call_deltas"), one => Json.Typed(one, CallDelta.From)),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "id", Id);
            Json.Put(json, "text", Text);
            Json.Put(json, "reasoning", Reasoning);
            Json.Put(json, "tool_calls", ToolCalls);
            Json.Put(json, "call_deltas", CallDeltas);
            return json;
        }
    }

    public sealed class Progress : IJson
    {
        public object Id { get; set; }
        public string Text { get; set; }
        public double? ElapsedS { get; set; }

        public static Progress From(IDictionary<string, object> json)
        {
            return new Progress
            {
                Id = Json.Get(json, "id"),
                Text = (string)Json.Get(json, "text"),
                ElapsedS = Json.Number(Json.Get(json, "elapsed_s")),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "id", Id);
            Json.Put(json, "text", Text);
            Json.Put(json, "elapsed_s", ElapsedS);
            return json;
        }
    }

    public sealed class Log : IJson
    {
        public string Level { get; set; }
        public string Text { get; set; }

        public static Log From(IDictionary<string, object> json)
        {
            return new Log
            {
                Level = (string)Json.Get(json, "level"),
                Text = (string)Json.Get(json, "text"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "level", Level);
            Json.Put(json, "text", Text);
            return json;
        }
    }

    public sealed class MessageToolCall : IJson
    {
        public string Id { get; set; }
        public string Type { get; set; }
        public MessageToolCallFunction Function { get; set; }
        /// <summary>What has no property of its own.</summary>
        public Dictionary<string, object> More { get; set; } = new Dictionary<string, object>();

        public static MessageToolCall From(IDictionary<string, object> json)
        {
            return new MessageToolCall
            {
                Id = (string)Json.Get(json, "id"),
                Type = (string)Json.Get(json, "type"),
                Function = Json.Typed(Json.Get(json, "function"), MessageToolCallFunction.From),
                More = Json.Rest(json, "id", "type", "function"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>(More);
            Json.Put(json, "id", Id);
            Json.Put(json, "type", Type);
            Json.Put(json, "function", Function);
            return json;
        }
    }

    public sealed class MessageToolCallFunction : IJson
    {
        public string Name { get; set; }
        public object Arguments { get; set; }

        public static MessageToolCallFunction From(IDictionary<string, object> json)
        {
            return new MessageToolCallFunction
            {
                Name = (string)Json.Get(json, "name"),
                Arguments = Json.Get(json, "arguments"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>();
            Json.Put(json, "name", Name);
            Json.Put(json, "arguments", Arguments);
            return json;
        }
    }

    public sealed class ToolFunction : IJson
    {
        public string Name { get; set; }
        public string Description { get; set; }
        public Dictionary<string, object> Parameters { get; set; }
        /// <summary>What has no property of its own.</summary>
        public Dictionary<string, object> More { get; set; } = new Dictionary<string, object>();

        public static ToolFunction From(IDictionary<string, object> json)
        {
            return new ToolFunction
            {
                Name = (string)Json.Get(json, "name"),
                Description = (string)Json.Get(json, "description"),
                Parameters = (Dictionary<string, object>)Json.Get(json, "parameters"),
                More = Json.Rest(json, "name", "description", "parameters"),
            };
        }

        public Dictionary<string, object> ToJson()
        {
            var json = new Dictionary<string, object>(More);
            Json.Put(json, "name", Name);
            Json.Put(json, "description", Description);
            Json.Put(json, "parameters", Parameters);
            return json;
        }
    }

    /// <summary>An object of a request or a reply.</summary>
    public interface IJson
    {
        Dictionary<string, object> ToJson();
    }

    /// <summary>
    /// JSON texts. Objects are Dictionary&lt;string, object&gt;, arrays List&lt;object&gt;, numbers long or double.
    /// </summary>
    public static class Json
    {
        private const int Deepest = 200;

        /// <summary>As ASCII. Takes dictionaries, sequences and IJson too. FormatException for anything else.</summary>
        public static string Write(object value)
        {
            var text = new StringBuilder();
            Append(text, value);
            return text.ToString();
        }

        public static Dictionary<string, object> ReadObject(string text)
        {
            var at = 0;
            var found = Read(text, ref at, 0) as Dictionary<string, object>;
            Skip(text, ref at);
            if (found == null || at != text.Length) throw Wrong(text, at);
            return found;
        }

        internal static void Put(Dictionary<string, object> json, string name, object value)
        {
            if (value != null) json[name] = value;
        }

        internal static object Get(IDictionary<string, object> json, string name)
        {
            object found;
            return json.TryGetValue(name, out found) ? found : null;
        }

        internal static double? Number(object found)
        {
            return found == null ? (double?)null : Convert.ToDouble(found, CultureInfo.InvariantCulture);
        }

        internal static List<T> Items<T>(object found, Func<object, T> read)
        {
            return (found as List<object>)?.Select(read).ToList();
        }

        internal static Dictionary<string, T> Members<T>(object found, Func<object, T> read)
        {
            return (found as Dictionary<string, object>)?.ToDictionary(pair => pair.Key, pair => read(pair.Value));
        }

        internal static T Typed<T>(object found, Func<IDictionary<string, object>, T> read) where T : class
        {
            var json = found as Dictionary<string, object>;
            return json == null ? null : read(json);
        }

        /// <summary>What the type has no property for.</summary>
        internal static Dictionary<string, object> Rest(IDictionary<string, object> json, params string[] known)
        {
            return json.Where(pair => !known.Contains(pair.Key)).ToDictionary(pair => pair.Key, pair => pair.Value);
        }

        private static void Append(StringBuilder text, object value)
        {
            if (value == null) text.Append("null");
            else if (value is bool) text.Append((bool)value ? "true" : "false");
            else if (value is string) AppendText(text, (string)value);
            else if (value is IJson) Append(text, ((IJson)value).ToJson());
            else if (value is double || value is float)
            {
                var number = Convert.ToDouble(value);
                if (double.IsNaN(number) || double.IsInfinity(number))
                    throw new FormatException("JSON has no number " + number + "; give a finite one.");
                text.Append(number.ToString("R", CultureInfo.InvariantCulture));
            }
            else if (value is long || value is int || value is short || value is byte || value is ulong || value is uint)
                text.Append(Convert.ToString(value, CultureInfo.InvariantCulture));
            else if (value is IDictionary)
                AppendAll(text, '{', '}', ((IDictionary)value).Keys.Cast<object>(), key =>
                {
                    AppendText(text, (string)key);
                    text.Append(':');
                    Append(text, ((IDictionary)value)[key]);
                });
            else if (value is IEnumerable) AppendAll(text, '[', ']', ((IEnumerable)value).Cast<object>(), one => Append(text, one));
            else throw new FormatException("JSON has no " + value.GetType() + ".");
        }

        private static void AppendAll(StringBuilder text, char first, char last, IEnumerable<object> all, Action<object> append)
        {
            text.Append(first);
            var isFirst = true;
            foreach (var one in all)
            {
                if (!isFirst) text.Append(',');
                isFirst = false;
                append(one);
            }
            text.Append(last);
        }

        private static void AppendText(StringBuilder text, string value)
        {
            text.Append('"');
            foreach (var letter in value)
            {
                if (letter == '"' || letter == '\\') text.Append('\\').Append(letter);
                else if (letter < ' ' || letter > '~') text.Append("\\u").Append(((int)letter).ToString("x4"));
                else text.Append(letter);
            }
            text.Append('"');
        }

        private static object Read(string text, ref int at, int depth)
        {
            Skip(text, ref at);
            if (at >= text.Length || depth > Deepest) throw Wrong(text, at);
            switch (text[at])
            {
                case '{':
                    var members = new Dictionary<string, object>();
                    at++;
                    while (!Ends(text, ref at, '}', members.Count > 0))
                    {
                        var name = ReadText(text, ref at);
                        Expect(text, ref at, ":");
                        members[name] = Read(text, ref at, depth + 1);
                    }
                    return members;
                case '[':
                    var items = new List<object>();
                    at++;
                    while (!Ends(text, ref at, ']', items.Count > 0)) items.Add(Read(text, ref at, depth + 1));
                    return items;
                case '"': return ReadText(text, ref at);
                case 't': Expect(text, ref at, "true"); return true;
                case 'f': Expect(text, ref at, "false"); return false;
                case 'n': Expect(text, ref at, "null"); return null;
                default: return ReadNumber(text, ref at);
            }
        }

        private static object ReadNumber(string text, ref int at)
        {
            var start = at;
            while (at < text.Length && "+-.0123456789eE".IndexOf(text[at]) >= 0) at++;
            var written = text.Substring(start, at - start);
            long whole;
            double number;
            if (long.TryParse(written, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out whole)) return whole;
            if (double.TryParse(written, NumberStyles.Float, CultureInfo.InvariantCulture, out number)) return number;
            throw Wrong(text, start);
        }

        private static string ReadText(string text, ref int at)
        {
            var found = new StringBuilder();
            Expect(text, ref at, "\"");
            while (at < text.Length && text[at] != '"')
            {
                var letter = text[at++];
                if (letter == '\\')
                {
                    if (at >= text.Length) break;
                    var escaped = text[at++];
                    var place = "bfnrt".IndexOf(escaped);
                    if (escaped == 'u')
                    {
                        int code;
                        if (at + 4 > text.Length || !int.TryParse(text.Substring(at, 4), NumberStyles.AllowHexSpecifier,
                                                                  CultureInfo.InvariantCulture, out code)) throw Wrong(text, at);
                        letter = (char)code;
                        at += 4;
                    }
                    else letter = place < 0 ? escaped : "\b\f\n\r\t"[place];
                }
                found.Append(letter);
            }
            Expect(text, ref at, "\"");
            return found.ToString();
        }

        /// <summary>Whether the object or array ends here; else the comma before its next part is passed.</summary>
        private static bool Ends(string text, ref int at, char last, bool isFurther)
        {
            Skip(text, ref at);
            if (at < text.Length && text[at] == last)
            {
                at++;
                return true;
            }
            if (isFurther) Expect(text, ref at, ",");
            return false;
        }

        private static void Expect(string text, ref int at, string expected)
        {
            Skip(text, ref at);
            if (string.CompareOrdinal(text, at, expected, 0, expected.Length) != 0) throw Wrong(text, at);
            at += expected.Length;
        }

        private static void Skip(string text, ref int at)
        {
            while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0) at++;
        }

        private static FormatException Wrong(string text, int at)
        {
            return new FormatException("no JSON at character " + at + " of '" + text.Substring(0, Math.Min(text.Length, 200)) + "'");
        }
    }
}
